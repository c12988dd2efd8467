/* store/job_queue.lua as a string. */
    .section .rodata
    .global mg_job_queue_lua
mg_job_queue_lua:
    .incbin MG_JOB_QUEUE_FILE
    .byte 0
    .section .note.GNU-stack,"",%progbits
