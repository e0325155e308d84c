//! What engines' pages say, and what the guard does about it.

use super::*;

const VLLM: &str = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79600620142e+09\n\
    vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"tiny\"} 93.0\n\
    vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"tiny\"} 273.0\n\
    vllm:spec_decode_num_draft_tokens_created{engine=\"0\",model_name=\"tiny\"} 1.79e+09\n\
    vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"tiny\"} 134.0\n\
    vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"tiny\",position=\"0\"} 61.0\n";

fn vllm(drafted: f64, accepted: f64) -> Option<Reading> {
    Some(Reading { started: Some(1.796_006_201_42e9), drafted, accepted: Accepted::Total(accepted) })
}

#[test]
fn vllm_is_read_as_a_whole_or_by_rank() {
    assert_eq!(reading(VLLM, None), vllm(273.0, 134.0));
    let two = format!(
        "{VLLM}vllm:spec_decode_num_draft_tokens_total{{engine=\"1\"}} 27.0\n\
         vllm:spec_decode_num_accepted_tokens_total{{engine=\"1\"}} 6.0\n"
    );
    assert_eq!(reading(&two, None), vllm(300.0, 140.0));
    assert_eq!(reading(&two, Some(1)), vllm(27.0, 6.0));
    // ranks of their own processes do not name themselves
    assert_eq!(reading(VLLM, Some(7)), vllm(273.0, 134.0));
    // several API servers share their counters through files, which hold only what was counted
    let shared = "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 5.0\n";
    let wanted = Reading { started: None, drafted: 5.0, accepted: Accepted::Total(0.0) };
    assert_eq!(reading(shared, None), Some(wanted));
}

#[test]
fn sglang_is_read_once_it_has_measured() {
    let page = |length: &str| {
        format!(
            "sglang:spec_verify_calls_total{{model_name=\"m\"}} 40.0\nsglang:spec_accept_length{{model_name=\"m\"}} {length}\n"
        )
    };
    let wanted = |any| Some(Reading { started: None, drafted: 40.0, accepted: Accepted::Lately(any) });
    assert_eq!(reading(&page("1.0"), None), wanted(false));
    assert_eq!(reading(&page("1.02"), None), wanted(true));
    assert_eq!(reading(&page("0.0"), None), None);
}

#[test]
fn engines_without_drafts_are_not_read() {
    for page in ["", "process_start_time_seconds 1\n", "llamacpp:prompt_tokens_total 7\n"] {
        assert_eq!(reading(page, None), None, "{page}");
    }
}

#[test]
fn an_instance_without_drafts_is_another_one_and_a_page_that_is_no_engines_is_none() {
    let then = reading(VLLM, None).unwrap();
    let is_another = |page: &str| of_none(page).is_some_and(|now| now.is_of_another(&then));
    // started anew without them
    assert!(is_another("process_start_time_seconds 1.7960070e+09\nvllm:num_requests_running 0.0\n"));
    assert!(is_another("vllm:num_requests_running 0.0\n"), "several API servers tell no start");
    assert!(!is_another("process_start_time_seconds 1.79600620142e+09\n"));
    assert!(!is_another("") && !is_another("<html>welcome</html>") && !is_another("node_load1 3\n"));
    // SGLang has measured nothing yet, which is nothing new
    let measured = Reading { started: None, drafted: 40.0, accepted: Accepted::Lately(false) };
    let page = |calls: u32| {
        of_none(&format!("sglang:spec_verify_calls_total {calls}.0\nsglang:spec_accept_length 0.0\n")).unwrap()
    };
    assert!(page(0).is_of_another(&measured) && !page(40).is_of_another(&measured));
    assert!(of_none("sglang:num_running_reqs 0.0\n").unwrap().is_of_another(&measured));
    // nothing is told from what is not known
    assert!(!of_none("vllm:num_requests_running 0.0\n").unwrap().is_of_another(&UNKNOWN));
}
