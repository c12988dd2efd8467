/* The page's files in one, as tools/pack_page.py has put them together. */
    .section .rodata
    .balign 16
    .global mg_page_pack, mg_page_pack_end
mg_page_pack:
    .incbin MG_PAGE_PACK
mg_page_pack_end:
    .section .note.GNU-stack,"",%progbits
