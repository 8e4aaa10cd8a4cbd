"""The HTTP contract's table: row of the list of inputs -> the tests that show it holds.

An id is what pytest takes, relative to this folder: `file.py::test` or `file.py::test[case]`. To
run a row: `pytest $(python -m tests.integration.http.contract 24)`. `test_http_contract.py` checks
that each required row has tests and that each id is a test that is collected.
"""

import sys
from pathlib import Path

REQUIRED = (1, 2, *range(10, 16), 17, *range(19, 81), 82, 86, 88, 89)
"""rows that must have a test"""


def refused(*cases: str) -> tuple[str, ...]:
    """Bodies of a chat request that are refused."""
    return tuple(f"fields/test_http_bad_inputs.py::test_is_refused[row-{case}]" for case in cases)


def sampling(*cases: str) -> tuple[str, ...]:
    """Sampling fields that are refused."""
    return tuple(
        f"fields/test_http_sampling.py::test_is_refused_by_name[row-{case}]" for case in cases
    )


def prompts(*cases: str) -> tuple[str, ...]:
    """Prompts of a completion that are refused."""
    return tuple(
        f"fields/test_http_bad_inputs.py::test_prompt_is_refused[{case}]" for case in cases
    )


def answered(*tests: str) -> tuple[str, ...]:
    """What must be served."""
    return tuple(f"answers/test_http_answers.py::{test}" for test in tests)


def faults(*tests: str) -> tuple[str, ...]:
    """Clients and engines that fail, overload."""
    return tuple(f"test_http_faults.py::{test}" for test in tests)


def headers(*tests: str) -> tuple[str, ...]:
    """What the request line and the headers decide."""
    return tuple(f"test_http_headers.py::{test}" for test in tests)


def limits(*tests: str) -> tuple[str, ...]:
    """What never becomes a request."""
    return tuple(f"test_http_limits.py::{test}" for test in tests)


def structured(*tests: str) -> tuple[str, ...]:
    """Answers with a grammar."""
    return tuple(f"answers/test_http_structured.py::{test}" for test in tests)


def fields(*tests: str) -> tuple[str, ...]:
    """Fields that real clients send."""
    return tuple(f"fields/test_http_fields.py::{test}" for test in tests)


def media_types(*cases: str) -> tuple[str, ...]:
    paths = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
    every = (
        f"test_rows_10_11_other_media_types[{case}-{path}]" for case in cases for path in paths
    )
    return headers(*every, "test_rows_10_11_json_in_utf8_is_read")


def choices(*tests: str) -> tuple[str, ...]:
    """Answers of several choices."""
    return tuple(f"answers/test_http_choices.py::{test}" for test in tests)


ROWS: dict[int, tuple[str, ...]] = {
    1: headers(
        "test_row_1_a_stated_length_over_the_limit_is_refused_unread",
        "test_a_client_that_sends_first_still_reads_the_413[row-1]",
    ),
    2: headers(
        "test_a_client_that_sends_first_still_reads_the_413[row-2]",
        "test_row_2_an_endless_chunked_body_costs_no_memory",
    ),
    3: limits(
        "test_row_3_large_headers",
        "test_row_3_headers_without_an_end",
        "test_row_3_what_fits_is_served",
    ),
    4: limits(
        "test_rows_4_5_slow_clients[row-4-in-the-line]",
        "test_rows_4_5_slow_clients[row-4-in-a-header]",
        "test_row_4_a_connection_that_never_asks_is_closed",
        "test_rows_4_5_an_answer_that_takes_long_is_no_slow_client",
        "test_the_limits_in_use",
    ),
    5: limits(
        "test_rows_4_5_slow_clients[row-5]",
        "test_rows_4_5_slow_clients[row-5-early-answer]",
        "test_the_limits_in_use",
    ),
    6: limits(
        "test_rows_6_7_contradicting_lengths[row-6]",
        "test_rows_6_7_contradicting_lengths[row-6-other-order]",
        "test_rows_6_7_contradicting_lengths[row-6-other-coding]",
    ),
    7: limits(
        *(
            f"test_rows_6_7_contradicting_lengths[row-7-{case}]"
            for case in ("two", "negative", "plus", "list", "huge")
        )
    ),
    8: limits("test_row_8_a_body_cut_by_the_close_is_dropped"),
    9: limits("test_row_9_a_bad_chunk_size", "test_row_9_a_million_one_byte_chunks"),
    10: media_types("row-10-text", "row-10-form", "row-10-multipart", "row-10-missing"),
    11: media_types("row-11-utf16", "row-11-latin1", "row-11-quoted"),
    12: headers(
        "test_row_12_a_compressed_body_is_not_touched", "test_row_12_identity_is_no_compression"
    ),
    13: headers(
        "test_row_13_no_continue_for_what_is_too_large", "test_row_13_continue_for_what_fits"
    ),
    14: headers("test_row_14_wrong_method", "test_row_14_head_where_get_is_and_nothing_else"),
    15: headers("test_row_15_unknown_path"),
    16: limits("test_row_16_not_a_request"),
    17: headers("test_row_17_a_client_s_request_id_is_never_ours"),
    18: limits("test_row_18_the_longest_idle_connection_gives_way"),
    19: headers(
        "test_row_19_pipelined_requests_are_answered_in_order",
        "test_row_19_a_half_closed_client_gets_all_its_answers",
    ),
    20: refused("20", "20-space"),
    21: refused("21-null", "21-number", "21-string", "21-list"),
    22: refused("22-cut", "22-garbage", "22-two"),
    23: refused(
        *("23-comment", "23-line-comment", "23-quotes", "23-comma"),
        *("23-zero", "23-plus", "23-hex"),
    ),
    24: refused("24", "24-nested"),
    25: refused("25-nan", "25-infinity"),
    26: refused("26", "26-negative"),
    27: refused("27-32", "27-33", "27-1000", "27-100000", "27-objects"),
    28: refused("28-5000", "28-400"),
    29: refused("29", "29-overlong"),
    30: refused("30"),
    31: refused("31-bom", "31-utf16", "31-utf16-no-bom", "31-utf32"),
    32: refused("32-content", "32-stop", "32-model", "32-key"),
    33: answered("test_row_33_a_surrogate_pair_equals_the_raw_character"),
    34: answered("test_rows_34_66_unusual_text_keeps_every_byte[row-34]"),
    35: refused("35"),
    36: refused("36"),
    37: (
        *refused(
            *("37-store-used", "37-metadata-used", "37-service_tier-used"),
        ),
        *answered("test_row_37_neutral_values_are_accepted"),
        *fields("test_row_37_unknown_fields_are_ignored_named_and_counted"),
        *fields("test_row_37_the_strict_form_refuses_them"),
    ),
    38: refused("38-missing", "38-number", "38-null"),
    39: ("fields/test_http_bad_inputs.py::test_row_39_unknown_model",),
    40: (
        *refused("40-missing", "40-empty", "40-null", "40-object", "40-no-list"),
        *prompts("40-missing", "40-null"),
    ),
    41: refused("41-unknown", "41-missing", "41-null", "41-number"),
    42: refused("42-null", "42-number", "42-object", "42-missing"),
    43: (
        *refused("43-0", "43-1", "43-2"),
        "fields/test_http_bad_inputs.py::test_row_43_nothing_is_fetched",
    ),
    44: (
        *refused("44-string", "44-float", "44-true", "44-newer"),
        *answered("test_rows_44_46_null_is_absent_and_equal_limits_agree"),
    ),
    45: (
        *refused("45-zero", "45-negative", "45-huge"),
        "fields/test_http_bad_inputs.py::test_row_45_of_completions",
    ),
    46: (
        *refused("46"),
        *answered("test_rows_44_46_null_is_absent_and_equal_limits_agree"),
    ),
    47: refused("47-string", "47-number"),
    48: refused("48-alone", "48-unknown", "48-type"),
    49: refused("49-low", "49-high", "49-string"),
    50: answered("test_row_50_next_to_zero_is_greedy"),
    51: refused("51-zero", "51-negative", "51-high"),
    52: refused("52-low", "52-float", "52-huge"),
    53: (*refused("53"), *choices("test_row_53_n_is_refused")),
    54: (
        *refused("54-best_of", "54-use_beam_search", "54-echo", "54-suffix"),
        "fields/test_http_bad_inputs.py::test_row_54_of_completions",
    ),
    55: (
        *refused("55", "55-negative", "55-alone", "55-prompt", "55-prompt-stream"),
        "fields/test_http_bad_inputs.py::test_row_55_of_completions",
    ),
    56: sampling(
        *("56-presence_penalty-2.01", "56-presence_penalty--2.01"),
        *("56-frequency_penalty-2.01", "56-frequency_penalty--2.01"),
        *(f"56-repetition_penalty-{value}" for value in ("0", "-1", "1000000000.0")),
    ),
    57: refused("57-float", "57-huge", "57-string"),
    58: refused("58"),
    59: headers("test_row_59_bad_time_limits", "test_row_59_good_time_limits"),
    60: prompts("60-empty"),
    61: answered("test_row_61_whitespace_and_ids_are_prompts"),
    62: (
        *prompts("62-empty", "62-negative", "62-vocab", "62-huge", "62-float", "62-true"),
        *prompts("62-mixed"),
        "fields/test_http_bad_inputs.py::test_row_62_the_first_id_beyond_the_vocabulary",
    ),
    63: (
        *fields("test_row_63_a_limit_that_does_not_fit_is_clamped"),
        "fields/test_http_bad_inputs.py::test_row_63_prompt_at_the_limit",
    ),
    64: (*refused("64"), *faults("test_row_64_a_long_text_does_not_block_the_loop")),
    65: answered("test_row_65_special_names_in_content_stay_text"),
    66: answered(
        *(
            f"test_rows_34_66_unusual_text_keeps_every_byte[row-66-{case}]"
            for case in ("joined", "marks", "override", "forms", "private", "han")
        )
    ),
    67: answered("test_row_67_an_answer_cut_inside_a_character"),
    68: answered("test_row_68_characters_split_over_tokens"),
    69: answered(
        "test_rows_69_70_72_stop_strings[row-69]",
        "test_rows_69_70_72_stop_strings[row-69-list]",
        "test_rows_69_70_72_stop_strings[row-69-not-found]",
        "test_row_69_text_is_held_back_for_less_than_a_stop",
    ),
    70: answered(
        "test_rows_69_70_72_stop_strings[row-70]",
        "test_row_70_a_stop_of_the_replacement_character",
    ),
    71: refused("71-empty", "71-number", "71-numbers", "71-five", "71-long"),
    72: answered("test_rows_69_70_72_stop_strings[row-72]"),
    73: (
        *sampling("73-word", "73-negative", "73-vocab"),
        "fields/test_http_sampling.py::test_row_73_the_vocabularys_last_id_is_taken_and_the_next_is_not",
    ),
    74: sampling("74-101", "74-null", "74-string", "74-list", "74-300000"),
    75: (
        "fields/test_http_sampling.py::test_row_75_a_bias_on_every_token_leaves_finite_probabilities",
    ),
    76: (
        *refused("76-chat_template", "76-chat_template_kwargs"),
        *fields("test_row_76_what_a_template_may_not_be_told"),
    ),
    77: refused(
        *("77-kv_transfer_params", "77-remote_host", "77-bootstrap_room"),
        *("77-request_id", "77-priority", "77-priority-8"),
    ),
    78: refused("78-prompt_embeds", "78-multi_modal_data"),
    79: (
        *structured(
            *(f"test_row_79_formats_we_do_not_have[row-79-{case}]" for case in ("grammar", "tag")),
            "test_row_79_formats_we_do_not_have[structural-tag]",
        ),
        "fields/test_http_guided.py::test_row_79_what_we_cannot_follow_is_refused_by_name",
        "answers/test_http_tools.py::test_row_79_what_is_not_supported_is_named",
    ),
    80: structured(
        *(
            f"test_row_80_schemas_nobody_can_follow[{case}]"
            for case in ("regex", "redos", "cyclic-ref", "cyclic-pair", "cyclic-anchor")
        ),
        "test_row_80_a_deep_schema[1000]",
        "test_row_80_a_schema_that_takes_for_ever",
    ),
    82: (
        *answered("test_row_82_two_live_requests_with_one_client_id"),
        *choices("test_row_82_two_live_requests_with_one_client_id"),
    ),
    86: (
        "test_http_overload.py::test_row_86_no_pool_and_a_draining_gateway",
        *faults(
            "test_overload[at-once-row-86]",
            "test_overload[admission-row-86]",
            "test_row_86_a_request_ended_by_the_gateway_s_own_end",
        ),
    ),
    88: (
        *faults("test_row_88_a_half_closed_client_is_served"),
        *choices("test_row_88_a_half_closed_client_gets_every_choice"),
    ),
    89: (
        *faults("test_row_89_failure_after_the_first_event"),
        *choices("test_row_89_a_choice_that_fails_ends_the_stream"),
    ),
}


def main(rows: list[str]) -> int:
    """Print the ids of the rows, as paths pytest takes from the repository's root."""
    folder = Path(__file__).resolve().parent
    known = {str(row) for row in ROWS}
    if unknown := [row for row in rows if row not in known]:
        sys.stderr.write(
            f"no row {', '.join(unknown)}; rows with tests: {', '.join(map(str, ROWS))}\n"
        )
        return 2
    for row in rows:
        for node in ROWS[int(row)]:
            sys.stdout.write(f"{folder.relative_to(Path.cwd()) / node}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
