//! Rules of names and sizes.

use std::ops::RangeInclusive;

use qnic_config::{require, ByteSize, ConfigError};

/// Longest name of a cluster or node, which keeps socket paths short.
pub const MAX_NAME: usize = 24;

/// Names that mean something else on the command line.
const RESERVED: [&str; 1] = ["all"];

/// Fails unless `name` can name a cluster, a node or what belongs to them.
pub(crate) fn check_name(name: &str, key: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b'-')
        && name.bytes().next().is_some_and(plain);
    let message = match fits {
        true if !RESERVED.contains(&name) => return Ok(()),
        true => format!("\"{name}\" has a meaning of its own: choose another name"),
        false => format!(
            "expected 1 to {MAX_NAME} of the characters a-z, 0-9 and \"-\", not \"-\" first, found \"{name}\""
        ),
    };
    Err(ConfigError::new(key, message))
}

pub(super) fn check_size(
    size: Option<ByteSize>,
    range: RangeInclusive<ByteSize>,
    table: &str,
    field: &str,
) -> Result<(), ConfigError> {
    let Some(size) = size else { return Ok(()) };
    let (key, [least, most]) = (format!("{table}.{field}"), [range.start(), range.end()]);
    let message = format!("expected {least} to {most}, found {size}");
    require(range.contains(&size), &key, message)?;
    let message = format!("expected a whole number of MiB, found {size}");
    require(size.0 % ByteSize::mib(1).0 == 0, key, message)
}
