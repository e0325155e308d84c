//! What must and what must not be read from an answer.

use super::*;
use proptest::prelude::*;

fn state_after(events: &[&str]) -> StreamState {
    states(events).pop().unwrap_or_default()
}

/// The state after each event of a stream.
fn states(events: &[&str]) -> Vec<StreamState> {
    let mut reader = StreamReader::default();
    events.iter().map(|e| reader.push(format!("data: {}\n\n", e.replace('\n', " ")).as_bytes())).collect()
}

#[test]
fn a_role_or_an_empty_delta_is_not_a_generated_token() {
    for event in [
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[],"reasoning_content":""}}]}"#,
        r#"{"choices":[{"index":0,"text":"","logprobs":null}]}"#,
        r#"{"choices":[],"usage":null}"#,
        "not json",
    ] {
        let nothing = StreamState { foreign: event == "not json", ..StreamState::default() };
        assert_eq!(state_after(&[event]), nothing, "{event}");
    }
}

#[test]
fn a_stream_is_foreign_as_long_as_none_of_its_events_is_known() {
    for (events, foreign) in [
        (&[][..], false),
        (&["not json", r#"{"token":{"text":"x"}}"#, r#"{"content":"x","stop":false}"#], true),
        (&[r#"{"token":{"text":"x"}}"#, r#"{"choices":[]}"#], false),
        (&[r#"{"type":"response.created","response":{}}"#], false),
        (&[r#"{"text":"x","meta_info":{}}"#], false),
    ] {
        assert_eq!(state_after(events).foreign, foreign, "{events:?}");
    }
}

#[test]
fn content_reasoning_tool_calls_and_text_are_generated_tokens() {
    for event in [
        r#"{"choices":[{"delta":{"content":"x"}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"x"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
        r#"{"choices":[{"text":" "}]}"#,
    ] {
        assert!(state_after(&[event]).generated, "{event}");
    }
}

#[test]
fn an_error_event_is_a_failure_even_if_done_follows() {
    let state =
        state_after(&[r#"{"choices":[{"delta":{"content":"x"}}]}"#, r#"{"error":{"message":"core died"}}"#, "[DONE]"]);
    assert!(state.failed && state.finished);
}

#[test]
fn an_error_event_says_whose_fault_it_is() {
    for (event, refused) in [
        (r#"{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}"#, true),
        (r#"{"error":{"message":"m","type":"x","code":"422"}}"#, true),
        (r#"{"error":{"status":429,"type":"InternalServerError"}}"#, true),
        (r#"{"error":{"message":"m","type":"InternalServerError","code":500}}"#, false),
        (r#"{"error":{"message":"m","type":"BadRequestError","code":500}}"#, false),
        (r#"{"error":{"message":"m","type":"invalid_request_error","code":"context_length_exceeded"}}"#, true),
        (r#"{"error":{"message":"m","type":"server_error","code":null}}"#, false),
        (r#"{"error":{"message":"the code is \"code\":400"}}"#, false),
        (r#"{"error":"died"}"#, false),
        (r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"}}"#, true),
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#, false),
        (r#"{"type":"response.failed","response":{"error":{"code":"server_error"}}}"#, false),
    ] {
        let state = state_after(&[event, "[DONE]"]);
        assert_eq!((state.failed, state.refused), (true, refused), "{event}");
    }
    assert!(!state_after(&[r#"{"error":null,"choices":[]}"#]).failed);
}

#[test]
fn usage_is_read_in_every_engines_words_and_absent_is_unknown() {
    let rows = [
        (
            r#"{"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":96}}}"#,
            Some(100),
            Some(96),
            Some(5),
        ),
        (
            r#"{"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":null}}"#,
            Some(100),
            None,
            Some(5),
        ),
        (r#"{"usage":{"prompt_tokens":100,"cached_tokens":0}}"#, Some(100), Some(0), None),
        (r#"{"timings":{"cache_n":90,"prompt_n":10,"predicted_n":4,"prompt_ms":1.5}}"#, Some(100), Some(90), Some(4)),
        (r#"{"usage":null}"#, None, None, None),
    ];
    for (event, prompt, cached, completion) in rows {
        assert_eq!(state_after(&[event]).usage, Usage { prompt, cached, completion, ..Usage::default() }, "{event}");
    }
}

#[test]
fn reasoning_is_told_apart_from_the_answer() {
    for (usage, reasoning) in [
        (r#""completion_tokens":9,"completion_tokens_details":{"audio_tokens":1,"reasoning_tokens":7}"#, Some(7)),
        (r#""output_tokens":9,"output_tokens_details":{"reasoning_tokens":0}"#, Some(0)),
        (r#""completion_tokens":9,"reasoning_tokens":7"#, Some(7)),
        (r#""completion_tokens":9,"completion_tokens_details":null"#, None),
    ] {
        let usage = state_after(&[&format!(r#"{{"usage":{{"prompt_tokens":5,{usage}}}}}"#)]).usage;
        assert_eq!((usage.completion, usage.reasoning), (Some(9), reasoning), "{usage:?}");
    }
}

#[test]
fn timings_with_every_event_count_to_the_last_and_usage_goes_before_them() {
    let events: Vec<_> =
        (1..=50).map(|n| format!(r#"{{"timings":{{"cache_n":90,"prompt_n":10,"predicted_n":{n}}}}}"#)).collect();
    let mut texts: Vec<_> = events.iter().map(String::as_str).collect();
    assert_eq!(
        state_after(&texts).usage,
        Usage { prompt: Some(100), cached: Some(90), completion: Some(50), ..Usage::default() }
    );
    texts.insert(7, r#"{"usage":{"prompt_tokens":101,"completion_tokens":51}}"#);
    assert_eq!(
        state_after(&texts).usage,
        Usage { prompt: Some(101), cached: Some(90), completion: Some(51), ..Usage::default() }
    );
}

#[test]
fn a_later_event_without_figures_does_not_erase_them() {
    let state = state_after(&[
        r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}"#,
        r#"{"usage":{"completion_tokens":2}}"#,
    ]);
    assert_eq!(state.usage, Usage { prompt: Some(9), cached: Some(3), completion: Some(2), ..Usage::default() });
}

#[test]
fn a_whole_answer_is_read_from_its_tail() {
    let mut reader = WholeReader::default();
    reader.push(&vec![b'x'; 3 * MAX_WHOLE]);
    for piece in [&br#"y"}],"usage": {"prompt_tok"#[..], br#"ens":7,"completion_tokens":1,"#, br#""total_tokens":8}}"#]
    {
        reader.push(piece);
    }
    assert!(reader.tail.len() <= MAX_WHOLE);
    assert_eq!(reader.usage(), Usage { prompt: Some(7), cached: None, completion: Some(1), ..Usage::default() });
    assert_eq!(WholeReader::default().usage(), Usage::default());
}

/// After which event something was generated, and after which it was finished.
fn moments(events: &[&str]) -> (Option<usize>, Option<usize>) {
    let states = states(events);
    (states.iter().position(|s| s.generated), states.iter().position(|s| s.finished))
}

#[test]
fn a_responses_stream_is_read() {
    let events = [
        r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress","error":null,"usage":null,"output":[]}}"#,
        r#"{"type":"response.in_progress","response":{"id":"resp_1","error":null}}"#,
        r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
        r#"{"type":"response.content_part.added","part":{"type":"output_text","text":""}}"#,
        r#"{"delta":"","type":"response.output_text.delta"}"#,
        r#"{"delta":"x","sequence_number":5,"type":"response.output_text.delta"}"#,
        r#"{"type":"response.output_text.done","text":"x"}"#,
        r#"{"response":{"id":"resp_1","output":[{"usage":1}],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64},
            "output_tokens":7,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":107}},"type":"response.completed"}"#,
    ];
    assert_eq!(moments(&events), (Some(5), Some(7)));
    let usage = Usage { prompt: Some(100), cached: Some(64), completion: Some(7), reasoning: Some(2) };
    assert_eq!(state_after(&events).usage, usage);
    for event in [
        r#"{"type":"response.reasoning_text.delta","delta":"x"}"#,
        r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#,
        r#"{"type":"response.output_item.done","item":{"type":"function_call","name":"f"}}"#,
    ] {
        assert!(state_after(&[event]).generated, "{event}");
    }
    for event in [
        r#"{"type":"response.failed","response":{"error":{"code":"server_error"}}}"#,
        r#"{"type":"error","code":"x","message":"m"}"#,
    ] {
        assert!(state_after(&[event]).failed, "{event}");
    }
    assert!(state_after(&[r#"{"type":"response.incomplete","response":{}}"#]).finished);
}

#[test]
fn a_messages_stream_is_read_and_its_cached_tokens_are_counted_into_the_prompt() {
    let events = [
        r#"{"type":"message_start","message":{"id":"msg_1","role":"assistant","content":[],"stop_reason":null,
            "usage":{"input_tokens":10,"cache_creation_input_tokens":26,"cache_read_input_tokens":64,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"ping"}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":5}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":7}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    assert_eq!(moments(&events), (Some(4), Some(7)));
    assert_eq!(
        state_after(&events).usage,
        Usage { prompt: Some(100), cached: Some(64), completion: Some(7), ..Usage::default() }
    );
    for event in [
        r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#,
        r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}}"#,
        r#"{"type":"content_block_start","content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
    ] {
        assert!(state_after(&[event]).generated, "{event}");
    }
    assert!(state_after(&[r#"{"type":"error","error":{"type":"overloaded_error"}}"#]).failed);
    assert!(state_after(&[r#"{"type":"message_stop"}"#]).finished);
}

#[test]
fn who_counts_the_cache_beside_the_input_is_told_by_the_names() {
    let whole = |text: &str| {
        let mut reader = WholeReader::default();
        reader.push(text.as_bytes());
        reader.usage()
    };
    let rows = [
        (r#"{"usage":{"input_tokens":10,"cache_read_input_tokens":64,"output_tokens":7}}"#, Some(74), Some(64)),
        (r#"{"usage":{"input_tokens":10,"cache_creation_input_tokens":5,"output_tokens":7}}"#, Some(15), None),
        (r#"{"usage":{"input_tokens":10,"cache_read_input_tokens":null,"output_tokens":7}}"#, Some(10), None),
        (
            r#"{"usage":{"input_tokens":80,"input_tokens_details":{"cached_tokens":64},"output_tokens":7}}"#,
            Some(80),
            Some(64),
        ),
        (r#"{"usage":{"prompt_tokens":80,"cache_read_input_tokens":64,"completion_tokens":7}}"#, Some(80), Some(64)),
        (
            r#"{"text":"x","meta_info":{"prompt_tokens":80,"cached_tokens":64,"completion_tokens":7}}"#,
            Some(80),
            Some(64),
        ),
    ];
    for (text, prompt, cached) in rows {
        assert_eq!(whole(text), Usage { prompt, cached, completion: Some(7), ..Usage::default() }, "{text}");
    }
}

#[test]
fn a_generate_stream_is_read() {
    let events = [
        r#"{"text":"","meta_info":{"id":"1","finish_reason":null,"prompt_tokens":9}}"#,
        r#"{"text":"a","meta_info":{"id":"1","finish_reason":null,"prompt_tokens":9,"completion_tokens":1}}"#,
        r#"{"text":"ab","meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":9,"completion_tokens":2,"cached_tokens":4}}"#,
    ];
    assert_eq!(moments(&events), (Some(1), Some(2)));
    assert_eq!(
        state_after(&events).usage,
        Usage { prompt: Some(9), cached: Some(4), completion: Some(2), ..Usage::default() }
    );
}

#[test]
fn an_event_too_large_to_keep_tells_by_its_name() {
    let large = |name: &str| {
        let filling = "x".repeat(super::super::sse::MAX_EVENT);
        StreamReader::default().push(format!("event: {name}\ndata: {{\"a\":\"{filling}\"}}\n\n").as_bytes())
    };
    assert_eq!(large("response.created"), StreamState::default());
    assert!(large("response.completed").finished && !large("response.completed").generated);
    assert!(large("response.failed").failed);
    assert!(large("message").generated);
}

#[test]
fn the_id_of_an_answer_is_found_once_and_only_where_it_is_wanted() {
    let created =
        b"data: {\"type\":\"response.created\",\"response\":{\"object\":\"response\",\"id\":\"resp_\\u0031\"}}\n\n";
    let mut reader = StreamReader::with_id();
    reader.push(&created[..40]);
    assert_eq!(reader.take_id(), None);
    reader.push(&created[40..]);
    assert_eq!(reader.take_id().as_deref(), Some(&b"resp_1"[..]));
    reader.push(created);
    assert_eq!(reader.take_id(), None);
    let mut unwanted = StreamReader::default();
    unwanted.push(created);
    assert_eq!(unwanted.take_id(), None);

    let id_of = |body: &str, mut reader: WholeReader| {
        body.as_bytes().chunks(1000).for_each(|piece| reader.push(piece));
        reader.ids().pop().map(|id| String::from_utf8(id).unwrap())
    };
    let filling = "x".repeat(2 * MAX_WHOLE);
    for (body, id) in [
        (r#"{"object":"response","output":[{"id":"msg_1"}],"id":"resp_1"}"#.to_owned(), Some("resp_1")),
        (format!(r#"{{"id":"resp_1","output":[{{"id":"msg_1","text":"{filling}"}}]}}"#), Some("resp_1")),
        (format!(r#"{{"output":"{filling}","id":"resp_1"}}"#), None),
        (format!(r#"{{"id":"{}"}}"#, &filling[..300]), None),
        (r#"{"id":7}"#.to_owned(), None),
        ("[".to_owned(), None),
    ] {
        assert_eq!(id_of(&body, WholeReader::with_ids(&["id"])).as_deref(), id);
        assert_eq!(id_of(&body, WholeReader::default()), None);
    }
}

#[test]
fn a_batch_tells_of_its_files() {
    let mut reader = WholeReader::with_ids(&["id", "output_file_id", "error_file_id"]);
    reader.push(br#"{"id":"batch-1","input_file_id":"f-0","output_file_id":"f-1","error_file_id":null,"#);
    reader.push(br#""errors":{"id":"x"}}"#);
    assert_eq!(reader.ids(), [b"batch-1".to_vec(), b"f-1".to_vec()]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a stream holds, it is read the same however it is cut.
    #[test]
    fn the_cut_of_a_stream_does_not_matter(
        lines in prop::collection::vec(prop_oneof![
            "(data|event)?:? ?[ -~]{0,30}",
            Just("data: [DONE]".to_owned()),
            Just("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}".to_owned()),
            Just("data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}".to_owned()),
            Just("data: {\"error\":{}}".to_owned()),
            Just("data: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}".to_owned()),
        ], 0..10),
        ends in prop::collection::vec(prop::sample::select(&["\n", "\r\n", "\r", "\n\n", "\r\r\n\n"][..]), 10),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut text: Vec<u8> = lines.iter().zip(&ends).flat_map(|(line, end)| [line.as_bytes(), end.as_bytes()].concat()).collect();
        for (at, byte) in noise {
            if !text.is_empty() {
                let at = at.index(text.len());
                text[at] = byte;
            }
        }
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let (mut whole, mut cut) = (StreamReader::with_id(), StreamReader::with_id());
        let mut state = StreamState::default();
        for pair in cuts.windows(2) {
            state = cut.push(&text[pair[0]..pair[1]]);
        }
        // whether the last piece brought anything is about that piece
        let all = |state: StreamState| StreamState { progressed: false, ..state };
        prop_assert_eq!(all(state), all(whole.push(&text)));
        prop_assert_eq!(cut.take_id(), whole.take_id());
    }
}
