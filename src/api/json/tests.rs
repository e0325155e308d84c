//! The cursor and the decoder against a strict parser, and against everything that such a parser refuses.

use super::text::decode;
use super::*;
use proptest::prelude::*;

fn decoded(raw: &str) -> Vec<u8> {
    let mut out = Vec::new();
    Str { raw: raw.as_bytes(), at: 0 }.decode(|p| out.extend_from_slice(p));
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
    fn long_strings_of_every_density_decode_in_one_pass(parts in prop::collection::vec("[a-z]{0,90}[\"\\\\\n😀é]{0,3}", 0..40)) {
        let s = parts.concat();
        let text = serde_json::to_string(&s).unwrap() + "tail";
        let mut out = Vec::new();
        let mut cursor = Cursor::new(text.as_bytes());
        cursor.string_decoded(|p| out.extend_from_slice(p)).unwrap();
        prop_assert_eq!(String::from_utf8(out).unwrap(), s);
        prop_assert_eq!(cursor.at, text.len() - 4);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut c = Cursor::new(&bytes);
        let _unused = c.object(|k, v| { k.decode(|_| ()); v.skip().map(drop) });
        let _unused = Cursor::new(&bytes).string_decoded(|_| ());
        decode(&bytes, |_| ());
    }
}
