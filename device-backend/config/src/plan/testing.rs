//! For tests: impairments as words.

use crate::plan::Impairments;

/// Impairments as they are printed: `loss 5% delay 1ms partition`.
pub(crate) fn impairments(text: &str) -> Impairments {
    let mut words = text.split_whitespace();
    let settings = std::iter::from_fn(|| match words.next()? {
        "partition" => Some(("partition".to_owned(), true.into())),
        name => Some((name.to_owned(), words.next()?.into())),
    });
    serde_json::from_value(serde_json::Value::Object(settings.collect())).unwrap()
}
