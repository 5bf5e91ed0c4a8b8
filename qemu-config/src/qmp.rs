//! What is said to QEMU's monitor and by it (QMP): JSON, one message a line.
//!
//! Only what this crate asks for and looks at is here. The crate that has all of QMP
//! (`qapi-qmp`) takes 31 s of processor time to compile, in each first build of the tool; these
//! are few commands and two events.
//!
//! QEMU may be newer than this: fields, states and events that are not known are no errors.

use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::Deserialize;
use serde_json::{json, Value};

/// A command whose answer is an `A`.
pub struct Command<A> {
    name: &'static str,
    arguments: Value,
    answer: PhantomData<fn() -> A>,
}

/// Ends the greeting: only then are commands taken.
pub const QMP_CAPABILITIES: Command<Nothing> = Command::new("qmp_capabilities");
/// Asks what the machine is doing.
pub const QUERY_STATUS: Command<Status> = Command::new("query-status");
/// Asks for the character devices.
pub const QUERY_CHARDEV: Command<Vec<CharacterDevice>> = Command::new("query-chardev");
/// Stops the virtual CPUs.
pub const STOP: Command<Nothing> = Command::new("stop");
/// Lets the virtual CPUs go on.
pub const CONT: Command<Nothing> = Command::new("cont");
/// Ends QEMU.
pub const QUIT: Command<Nothing> = Command::new("quit");
/// Lists the memory that was added to the machine.
pub const QUERY_MEMORY_DEVICES: Command<Vec<Value>> = Command::new("query-memory-devices");
/// Makes an object (`qom-type`, `id`, and its properties).
pub const OBJECT_ADD: Command<Nothing> = Command::new("object-add");
/// Removes an object (`id`).
pub const OBJECT_DEL: Command<Nothing> = Command::new("object-del");
/// Plugs a device in (`driver`, `id`, and its properties).
pub const DEVICE_ADD: Command<Nothing> = Command::new("device_add");
/// Sets the memory that the guest is to keep (`value`, in bytes): its balloon has the rest.
pub const BALLOON: Command<Nothing> = Command::new("balloon");
/// Carries out a command of QEMU's other monitor, for people (`command-line`), and returns its output.
pub const HUMAN: Command<String> = Command::new("human-monitor-command");
/// Begins to write the guest's memory to a file.
pub const DUMP_GUEST_MEMORY: Command<Nothing> = Command::new("dump-guest-memory");
/// Asks how far that is.
pub const QUERY_DUMP: Command<Dump> = Command::new("query-dump");
/// Presses the machine's power button.
pub const SYSTEM_POWERDOWN: Command<Nothing> = Command::new("system_powerdown");
/// Resets the machine.
pub const SYSTEM_RESET: Command<Nothing> = Command::new("system_reset");

impl<A: DeserializeOwned> Command<A> {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            arguments: Value::Null,
            answer: PhantomData,
        }
    }

    /// The same command with these arguments.
    pub fn with(self, arguments: Value) -> Self {
        Self { arguments, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The line that is sent.
    pub(crate) fn line(&self) -> String {
        let line = match &self.arguments {
            Value::Null => json!({ "execute": self.name }),
            arguments => json!({ "execute": self.name, "arguments": arguments }),
        };
        format!("{line}\n")
    }

    /// Understands what a successful command returned.
    pub(crate) fn answer(&self, returned: Value) -> serde_json::Result<A> {
        serde_json::from_value(returned)
    }
}

/// The answer that says no more than that the command was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Nothing {}

/// What the machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// The virtual CPUs run.
    pub running: bool,
    /// Why they do, or do not.
    pub status: RunState,
}

/// A state of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// The guest's kernel has panicked.
    GuestPanicked,
    /// Any other.
    #[serde(other)]
    Other,
}

/// How far a dump of the guest's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Dump {
    /// Whether it is done.
    pub status: DumpState,
    /// Bytes that are written.
    pub completed: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A state of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DumpState {
    /// It is being written.
    Active,
    /// It is whole.
    Completed,
    /// It has failed, or there is none.
    #[serde(other)]
    Other,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CharacterDevice {
    /// Its name on QEMU's command line.
    pub label: String,
    /// The guest has opened the port that it belongs to.
    pub frontend_open: bool,
}

/// What QEMU tells unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The machine was reset.
    Reset {
        /// By the guest itself.
        guest: bool,
    },
    /// The guest's kernel has panicked.
    GuestPanicked,
    /// Any other.
    Other,
}

impl Event {
    fn new(name: &str, data: &Value) -> Self {
        match name {
            "RESET" => Self::Reset {
                guest: data["guest"] == true,
            },
            "GUEST_PANICKED" => Self::GuestPanicked,
            _ => Self::Other,
        }
    }
}

/// A line from QEMU.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Greeting,
    Event(Event),
    /// A command was done, and returned this.
    Returned(Value),
    /// A command was refused, for this reason.
    Refused(String),
}

/// All fields of all messages. Which are there tells what it is.
#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "QMP")]
    greeting: Option<IgnoredAny>,
    event: Option<String>,
    #[serde(default)]
    data: Value,
    #[serde(rename = "return")]
    returned: Option<Value>,
    error: Option<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    desc: String,
}

impl Message {
    /// Understands `line`, or returns `None` if it is not of QMP.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let fields: Fields = serde_json::from_slice(line).ok()?;
        match fields {
            Fields {
                event: Some(name),
                data,
                ..
            } => Some(Self::Event(Event::new(&name, &data))),
            Fields {
                error: Some(reason),
                ..
            } => Some(Self::Refused(reason.desc)),
            Fields {
                returned: Some(value),
                ..
            } => Some(Self::Returned(value)),
            Fields {
                greeting: Some(_), ..
            } => Some(Self::Greeting),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> Event {
        match Message::parse(line.as_bytes()) {
            Some(Message::Event(event)) => event,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_command_is_one_line() {
        assert_eq!(QUERY_STATUS.line(), "{\"execute\":\"query-status\"}\n");
        let balloon = BALLOON.with(json!({ "value": 1 }));
        let line = "{\"arguments\":{\"value\":1},\"execute\":\"balloon\"}\n";
        assert_eq!(balloon.line(), line);
    }

    #[test]
    fn answers_are_understood_whatever_else_they_say() {
        let status = json!({ "status": "guest-panicked", "running": false, "singlestep": false });
        assert_eq!(
            QUERY_STATUS.answer(status).unwrap(),
            Status {
                running: false,
                status: RunState::GuestPanicked
            }
        );
        let newer = json!({ "status": "newer-than-us", "running": true });
        assert_eq!(
            QUERY_STATUS.answer(newer).unwrap(),
            Status {
                running: true,
                status: RunState::Other
            }
        );
        let devices = json!([{ "frontend-open": true, "filename": "unix:x", "label": "agent" }]);
        let agent = CharacterDevice {
            label: "agent".to_owned(),
            frontend_open: true,
        };
        assert_eq!(QUERY_CHARDEV.answer(devices).unwrap(), [agent]);
        assert_eq!(STOP.answer(json!({})).unwrap(), Nothing {});
        assert!(QUERY_STATUS.answer(json!({})).is_err());
    }

    #[test]
    fn a_reset_says_whose_it_is_and_events_not_looked_at_are_none_of_those() {
        let stamp = r#""timestamp": {"seconds": 1, "microseconds": 2}"#;
        for guest in [true, false] {
            let line = format!(
                r#"{{{stamp}, "event": "RESET", "data": {{"guest": {guest}, "reason": "x"}}}}"#
            );
            assert_eq!(event(&line), Event::Reset { guest });
        }
        let panicked = r#"{"event": "GUEST_PANICKED", "data": {"action": "pause"}}"#;
        assert_eq!(event(panicked), Event::GuestPanicked);
        assert_eq!(
            event(&format!(r#"{{{stamp}, "event": "POWERDOWN"}}"#)),
            Event::Other
        );
    }

    #[test]
    fn messages_are_told_apart_and_garbage_is_none() {
        let greeting = br#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;
        assert_eq!(Message::parse(greeting), Some(Message::Greeting));
        let returned = Message::parse(br#"{"return": {}, "id": 1}"#);
        assert_eq!(returned, Some(Message::Returned(json!({}))));
        let refused = Message::parse(br#"{"error": {"class": "NewClass", "desc": "not so"}}"#);
        assert_eq!(refused, Some(Message::Refused("not so".to_owned())));
        for garbage in [
            "",
            "\n",
            "{}",
            "[]",
            "7",
            "{\"return\"",
            "\u{ff}",
            "hello\n",
        ] {
            assert_eq!(Message::parse(garbage.as_bytes()), None, "{garbage:?}");
        }
    }
}
