/* docs/openapi.json as bytes. */
    .section .rodata
    .global mg_openapi_json, mg_openapi_json_end
mg_openapi_json:
    .incbin MG_OPENAPI_FILE
mg_openapi_json_end:
    .section .note.GNU-stack,"",%progbits
