//! Pictures and other data: different data differ, equal data are equal, and neither weighs what its text does.

use super::*;

#[test]
fn pictures_weigh_what_they_cost_and_differ_by_their_data() {
    let body = |data: &str| {
        json!({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}},
            {"type": "text", "text": "what is this?"}]}]})
    };
    let big = prints(&body(&"A".repeat(100_000)));
    assert!(big.bytes < 4300);
    let other = prints(&body(&("A".repeat(99_999) + "B")));
    assert_eq!(other.bytes, big.bytes);
    assert!(shared(&big, &other) < 20);
}

/// A message with one part that is not text, in the words of an API.
fn with_data(api: usize, data: &str) -> Fingerprints {
    let chat_part = |part: Value| prints(&json!({"messages": [{"role": "user", "content": [part]}]}));
    let part = |part: Value| prints_of(&json!({"input": [{"role": "user", "content": [part]}]}).to_string(), responses);
    let block =
        |block: Value| prints_of(&json!({"messages": [{"role": "user", "content": [block]}]}).to_string(), anthropic);
    match api {
        0 => chat_part(json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}})),
        1 => chat_part(json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})),
        2 => chat_part(json!({"type": "file", "file": {"file_data": data, "filename": "a.pdf"}})),
        3 => part(json!({"type": "input_image", "image_url": format!("data:image/png;base64,{data}")})),
        4 => part(json!({"type": "input_file", "file_data": data, "filename": "a.pdf"})),
        5 => block(json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})),
        6 => block(json!({"type": "document", "source": {"type": "base64", "data": data}})),
        7 => block(json!({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}]})),
        _ => prints_of(&json!({"text": "a", "image_data": [data]}).to_string(), generate),
    }
}

#[test]
fn data_counts_in_full_and_weighs_what_it_costs_in_every_api() {
    let text = "A".repeat(300_000);
    let last = "A".repeat(299_999) + "B";
    for api in 0..9 {
        let (one, other) = (with_data(api, &text), with_data(api, &last));
        assert_eq!(one, with_data(api, &text), "{api}");
        assert_eq!(one.bytes, other.bytes, "{api}");
        assert!(one.bytes > 400 && one.bytes < 20_000, "{api}: {}", one.bytes);
        assert!(shared(&one, &other) < 60, "{api}: {}", shared(&one, &other));
    }
}

#[test]
fn an_address_counts_as_itself_however_it_is_escaped_or_wrapped() {
    let of = |part: &str| prints_of(&format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#), chat);
    let plain = of(r#"{"type":"image_url","image_url":{"url":"https://x.test/a.png"}}"#);
    assert_eq!(plain, of(r#"{"type":"image_url","image_url":{"url":"https:\/\/x.test\/a.png"}}"#));
    assert_eq!(plain, of(r#"{"type":"input_image","image_url":"https://x.test/a.png"}"#));
    assert_ne!(plain, of(r#"{"type":"image_url","image_url":{"url":"https://x.test/b.png"}}"#));
    assert!(plain.bytes > 2000);
}

#[test]
fn a_film_given_by_its_frames_does_not_weigh_their_text() {
    let frame = "A".repeat(50_000);
    let film = prints(&json!({"messages": [{"role": "user", "content": [
        {"type": "video", "video": [frame, frame, frame]}]}]}));
    assert!(film.bytes < 7000, "{}", film.bytes);
}

#[test]
fn a_document_of_plain_text_is_text() {
    let document = |data: &str| {
        let body = json!({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": data}}]}]});
        prints_of(&body.to_string(), anthropic)
    };
    let (short, long) = (document(&"word ".repeat(100)), document(&"word ".repeat(1000)));
    assert_eq!(long.bytes - short.bytes, 4500);
    assert!(shared(&short, &long) >= 500);
}
