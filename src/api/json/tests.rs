//! The cursor and the decoder against a strict parser, and against everything that such a parser refuses.

use super::text::{decode, settle};
use super::*;
use proptest::prelude::*;

fn decoded(raw: &str) -> Vec<u8> {
    let mut out = Vec::new();
    decode(raw.as_bytes(), |p| out.extend_from_slice(p));
    out
}

fn settled(raw: &str) -> Vec<u8> {
    let mut out = Vec::new();
    settle(raw.as_bytes(), |p| out.extend_from_slice(p));
    out
}

#[test]
fn decodes_every_escape() {
    assert_eq!(decoded(r#"a\n\t\r\b\f\"\\\/\u0041\u00e9\ud83d\ude00"#), "a\n\t\r\u{8}\u{c}\"\\/Aé😀".as_bytes());
}

#[test]
fn lone_surrogate_has_one_stable_reading() {
    assert_eq!(decoded(r"\ud83dx"), b"\xed\xa0\xbdx");
    assert_eq!(decoded(r"\ud83d\u0041"), b"\xed\xa0\xbdA");
    assert_eq!(decoded(r"\u12"), br"\u12");
}

#[test]
fn a_settled_text_escapes_what_it_must_and_no_more() {
    for (raw, wanted) in [
        ("plain", "plain"),
        (r#"a\n\"b\\"#, r#"a\n\"b\\"#),
        (
            r"\u0041\/\u00e9\ud83d\ude00 \u000a\u0009\u000D\u0008\u000c\u0022\u005C\u002f",
            "A/é😀 \\n\\t\\r\\b\\f\\\"\\\\/",
        ),
        (r"\u0001", "\u{1}"),
        // no escapes: the backslash before is itself escaped
        (r"C:\\users\\/x", r"C:\\users\\/x"),
        (r"\\\u0041\\\\u0041\\\\\/", r"\\A\\\\u0041\\\\/"),
        (r"\u12 \u", r"\u12 \u"),
        (r"\u12\u0041", r"\u12A"),
    ] {
        assert_eq!(String::from_utf8_lossy(&settled(raw)), wanted, "{raw}");
    }
    assert_eq!(settled(r"\ud83dx"), b"\xed\xa0\xbdx");
    let long = r"\u4f60".repeat(300);
    assert_eq!(settled(&long), "你".repeat(300).as_bytes());
}

#[test]
fn skips_odd_values_and_returns_their_text() {
    let text = br#" {"a": [1, {"x": "]}\"\\"}], "b": NaN , "c":-1e9 } "#;
    let mut seen = Vec::new();
    let mut cursor = Cursor::new(text);
    cursor
        .object(|key, value| {
            seen.push((key.text(), String::from_utf8_lossy(value.skip()?).into_owned()));
            Ok(())
        })
        .unwrap();
    assert!(cursor.at_end());
    let want = [("a", r#"[1, {"x": "]}\"\\"}]"#), ("b", "NaN"), ("c", "-1e9")];
    assert_eq!(seen, want.map(|(k, v)| (k.to_owned(), v.to_owned())));
}

#[test]
fn broken_text_is_an_error_not_a_panic() {
    for text in ["", "{", "[1", "{\"a\"", "{\"a\":}", "\"abc", "{\"a\" 1}", "[1 2]", "]", "{\"a\":\"\\"] {
        let mut c = Cursor::new(text.as_bytes());
        let result = match c.kind() {
            Ok(Kind::Object) => c.object(|_, v| v.skip().map(drop)),
            Ok(Kind::Array) => c.array(|v| v.skip().map(drop)),
            _ => c.skip().map(drop),
        };
        assert!(result.is_err(), "{text:?}");
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        ".*".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
            prop::collection::btree_map(".*", inner, 0..8)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn skip_covers_exactly_one_value(value in any_json(), pretty: bool, tail in "[,\\] }]?") {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let whole = format!("{text}{tail}");
        prop_assert_eq!(Cursor::new(whole.as_bytes()).skip().unwrap(), text.as_bytes());
    }

    #[test]
    fn strings_decode_as_a_strict_parser_does(s in ".*") {
        let text = serde_json::to_string(&s).unwrap();
        prop_assert_eq!(Cursor::new(text.as_bytes()).string().unwrap().text(), s);
    }

    #[test]
    fn long_strings_of_every_density_end_where_they_end(parts in prop::collection::vec("[a-z]{0,90}[\"\\\\\n😀é]{0,3}", 0..40)) {
        let s = parts.concat();
        let text = serde_json::to_string(&s).unwrap() + "tail\"";
        let mut cursor = Cursor::new(text.as_bytes());
        prop_assert_eq!(cursor.string().unwrap().text(), s);
        prop_assert_eq!(cursor.at, text.len() - 5);
    }

    #[test]
    fn a_text_settles_to_what_a_writer_that_escapes_little_writes(
        letters in prop::collection::vec((prop_oneof![any::<char>(), prop::sample::select(vec!['"', '\\', '/', 'u', '\n', '\u{8}', 'é', '😀'])], 0u8..3), 0..200),
        between in 0usize..40,
    ) {
        let (mut raw, mut meant) = (String::new(), String::new());
        for (letter, how) in letters {
            let short = serde_json::to_string(&letter).unwrap();
            match how {
                0 => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| raw += &format!("\\u{unit:04X}")),
                1 if letter == '/' => raw += r"\/",
                _ => raw += &short[1..short.len() - 1],
            }
            meant.push(letter);
            raw += &"x".repeat(between);
            meant += &"x".repeat(between);
        }
        // of control characters without a letter of their own serde writes the number
        let wanted = serde_json::to_string(&meant).unwrap();
        let wanted = (0..0x20).fold(wanted, |text, code| text.replace(&format!("\\u{code:04x}"), &char::from(code).to_string()));
        prop_assert_eq!(decoded(&raw), meant.as_bytes());
        prop_assert_eq!(settled(&raw), &wanted.as_bytes()[1..wanted.len() - 1]);
    }

    #[test]
    fn a_settled_text_means_the_same(raw in r#"([a-z]{0,20}|\\\\|\\"|\\/|\\u[0-9a-f]{4}|\\u[0-9a-f]{2}[g-z]|\\n|u|/){0,60}"#) {
        let settled = String::from_utf8_lossy(&settled(&raw)).into_owned();
        prop_assert_eq!(String::from_utf8_lossy(&decoded(&settled)).into_owned(), String::from_utf8_lossy(&decoded(&raw)).into_owned());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut c = Cursor::new(&bytes);
        let _unused = c.object(|k, v| { k.settle(|_| ()); v.skip().map(drop) });
        decode(&bytes, |_| ());
        settle(&bytes, |_| ());
    }
}
