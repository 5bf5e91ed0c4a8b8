//! Captures of what runs over a cluster's links, and the dissector for them (X5).

use std::io::{BufReader, Read, Write};

use serde_json::{json, Value};

use crate::device;
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{Cancel, Error, Result};

/// Wireshark's dissector for captures, in Lua: `tshark -X lua_script:FILE`.
pub const DISSECTOR: &str = include_str!("qnic.lua");

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 16;

/// Seconds that the device process may say nothing while it ends a capture.
const LIMIT_SECONDS: u64 = 20;

/// What to capture, beside the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Bytes of each frame to keep; all without it.
    pub snaplen: Option<u32>,
    /// Frames after which the capture ends by itself.
    pub count: Option<u64>,
}

impl CaptureOptions {
    /// The request to the device process for `links`, in its words.
    pub fn request(&self, links: &Value) -> Value {
        let mut request = json!({ "cmd": "capture", "links": links });
        if let Some(snaplen) = self.snaplen {
            request["snaplen"] = snaplen.into();
        }
        if let Some(count) = self.count {
            request["count"] = count.into();
        }
        request
    }
}

/// Copies the capture that `request` asks for to `out`, until it ends or `cancel` is pulled. What
/// is under way then, and the statistics, still follow. Returns the number of bytes.
pub(crate) fn copy(
    socket: &std::path::Path,
    request: &Value,
    cancel: &Cancel,
    out: &mut dyn Write,
) -> Result<u64> {
    let limit = Deadline::seconds(LIMIT_SECONDS);
    let connection = Socket::connect(socket, limit).map_err(device::silent)?;
    let mut stream = BufReader::with_capacity(CHUNK, connection.clone());
    device::exchange(&mut stream, connection.clone(), request)?;
    connection.set_deadline(Deadline::new(None, Some(cancel)));
    let mut total = 0;
    let mut piece = vec![0; CHUNK];
    loop {
        let length = match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if stop_in(&error) == Some(Stop::Cancelled) => {
                connection.end_output();
                connection.set_deadline(Deadline::seconds(LIMIT_SECONDS));
                continue;
            }
            Err(error) => return Err(device::silent(error)),
        };
        out.write_all(&piece[..length]).map_err(Error::Output)?;
        out.flush().map_err(Error::Output)?;
        total += length as u64;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::names::KINDS;
    use qnic_abi::verbs::frames::ReplyKind;
    use qnic_abi::verbs::Request;
    use qnic_abi::wire::WIRE_VERSION;
    use qnic_abi::Status;

    /// The dissector is a copy of what the frame format says: none of it is missing.
    #[test]
    fn the_dissector_knows_this_version_and_every_kind_and_status() {
        let version = format!("local VERSION = {WIRE_VERSION}\n");
        assert!(DISSECTOR.contains(&version), "{version}");
        for (number, kind) in KINDS {
            let entry = format!("[{number}] = \"{kind}\"");
            assert!(table("KINDS").contains(&entry), "{entry}");
        }
        assert_eq!(table("KINDS").matches('[').count(), KINDS.len());
        let name = |number: u32| Status::try_from(number).ok().map(|it| format!("{it:?}"));
        check_names("STATUSES", name);
    }

    /// The names of requests and replies of verbs are those of the frame format, too.
    #[test]
    fn the_dissector_knows_every_request_and_reply_of_verbs() {
        let request = |number: u32| {
            let request = Request::try_from(u8::try_from(number).ok()?).ok()?;
            Some(format!("{request:?}"))
        };
        check_names("REQUESTS", request);
        let reply = |number: u32| {
            let reply = ReplyKind::try_from(u8::try_from(number).ok()?).ok()?;
            Some(format!("{reply:?}"))
        };
        check_names("REPLIES", reply);
    }

    /// A table of names of the dissector.
    fn table(name: &str) -> &'static str {
        let table = DISSECTOR.split_once(&format!("local {name} = {{"));
        table.unwrap().1.split_once('}').unwrap().0
    }

    /// Checks that a table has all names and no others.
    fn check_names(table_name: &str, name_of: impl Fn(u32) -> Option<String>) {
        let mut names = 0;
        for number in 0..1000 {
            if let Some(name) = name_of(number) {
                let entry = format!("[{number}] = \"{name}\"");
                assert!(table(table_name).contains(&entry), "{entry}");
                names += 1;
            }
        }
        assert_eq!(table(table_name).matches('[').count(), names);
    }

    /// Wireshark has Lua 5.2 in one distribution, and 5.4 in the next: the dissector has no operator
    /// that only one of them knows.
    #[test]
    fn the_dissector_is_understood_by_each_version_of_lua() {
        let later = ["&", "|", "<<", ">>", "//", "~"];
        for (number, line) in DISSECTOR.lines().enumerate() {
            // Strings have neither quotes nor dashes in them.
            let code = line.split("--").next().unwrap_or_default();
            let outside = code.split('"').step_by(2);
            let outside = outside.collect::<String>().replace("~=", "");
            let found = later.iter().find(|operator| outside.contains(**operator));
            assert_eq!(found, None, "line {}: {line}", number + 1);
        }
    }

    /// What a body is said to have is a field that Wireshark is told of.
    #[test]
    fn every_field_of_a_body_is_known() {
        let (_, fields) = DISSECTOR.split_once("local field = {").unwrap();
        let (fields, rest) = fields.split_once("\n}").unwrap();
        let (bodies, _) = rest.split_once("local payload").unwrap();
        let mut names = 0;
        for part in bodies.split("{ \"").skip(1) {
            let (name, _) = part.split_once('"').unwrap();
            let known = [format!("    {name} = "), format!("[\"{name}\"] = ")];
            let found = known.iter().any(|known| fields.contains(known));
            assert!(found, "{name}");
            names += 1;
        }
        assert!(names > 80, "{names}");
    }
}
