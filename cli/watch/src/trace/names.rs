//! What operations, frames, reasons and nodes are called.

use std::collections::BTreeMap;

use qnic_abi::atomic::Function;
use qnic_abi::collective::Collective;
use qnic_abi::command::CommandBody;
use qnic_abi::message::SendCommand;
use qnic_abi::names::kind_name;
use qnic_abi::process_names::NameAction;
use qnic_abi::rdma::{ReadCommand, WriteCommand};
use qnic_abi::{atomic, collective, context, datagram, message, process_names, Status};
use qnic_nic::trace::{Event, Scope, CALL};

use crate::trace::collect::TracedNode;

/// Names of nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes(BTreeMap<u16, String>);

impl Nodes {
    pub(crate) fn new(nodes: &[TracedNode]) -> Self {
        let names = nodes.iter().map(|node| (node.node, node.name.clone()));
        Nodes(names.collect())
    }

    /// The name of a node; its number, if it was not traced.
    pub(crate) fn name(&self, node: u16) -> String {
        let name = self.0.get(&node).cloned();
        name.unwrap_or_else(|| format!("node {node}"))
    }
}

/// The name of an operation whose fetch was not seen.
pub(crate) fn unseen(event: &Event, nodes: &Nodes) -> String {
    let node = nodes.name(event.requester);
    match event.scope {
        Scope::Command => format!("operation of {node}"),
        Scope::Import => format!("import of {node}"),
        Scope::Collective => format!("collective of a group of {node}"),
        Scope::Join => format!("join of {node}"),
        Scope::Group => format!("group of {node}"),
        Scope::Name => format!("name of {node}"),
        Scope::Spread => format!("names of {node}"),
    }
}

/// The name of a call of a group, if it is one.
fn call(fetched: &Event) -> Option<String> {
    let number = u8::try_from(fetched.code.checked_sub(CALL)?).ok()?;
    let collective = Collective::try_from(number).ok()?;
    let size = match fetched.bytes {
        0 => String::new(),
        bytes => format!(" of {}", size(bytes)),
    };
    Some(format!("{collective:?} {}{size}", fetched.detail))
}

/// The name of a call that is no command of its own.
fn shared(fetched: &Event, nodes: &Nodes) -> String {
    let peer = nodes.name(fetched.peer);
    let opcode = u8::try_from(fetched.code).ok();
    let group = opcode.and_then(|opcode| collective::Opcode::try_from(opcode).ok());
    let action = u8::try_from(fetched.detail).ok();
    let action = action.and_then(|number| NameAction::try_from(number).ok());
    match (fetched.scope, group, action) {
        (Scope::Import, ..) => format!("import {:#x} of {peer}", fetched.detail),
        (Scope::Name, _, Some(action)) => format!("{action:?}"),
        (_, Some(collective::Opcode::JoinGroup), _) => format!("join a group at {peer}"),
        (_, Some(collective::Opcode::LeaveGroup), _) => "leave the group".to_owned(),
        _ => call(fetched).unwrap_or_else(|| unseen(fetched, nodes)),
    }
}

/// The name of an operation, by the event of its fetch.
pub(crate) fn operation(fetched: &Event, nodes: &Nodes) -> String {
    if fetched.scope != Scope::Command {
        return shared(fetched, nodes);
    }
    let peer = nodes.name(fetched.peer);
    let size = size(fetched.bytes);
    let Ok(opcode) = u8::try_from(fetched.code) else {
        return format!("command {}", fetched.code);
    };
    match opcode {
        WriteCommand::OPCODE => format!("write {size} to {peer}"),
        ReadCommand::OPCODE => format!("read {size} of {peer}"),
        SendCommand::OPCODE => format!("send {size} to {peer}, tag {}", fetched.detail),
        atomic::OPCODE => {
            let function = u16::try_from(fetched.detail).ok();
            let function = function.and_then(|number| Function::try_from(number).ok());
            match function {
                Some(function) => format!("{function:?} of {size} at {peer}"),
                None => format!("atomic operation at {peer}"),
            }
        }
        _ => {
            let name = opcode_name(opcode);
            let name = name.unwrap_or_else(|| format!("command {opcode}"));
            format!("{name} to {peer}")
        }
    }
}

fn opcode_name(opcode: u8) -> Option<String> {
    let names = [
        message::Opcode::try_from(opcode)
            .ok()
            .map(|it| format!("{it:?}")),
        context::Opcode::try_from(opcode)
            .ok()
            .map(|it| format!("{it:?}")),
        collective::Opcode::try_from(opcode)
            .ok()
            .map(|it| format!("{it:?}")),
        datagram::Opcode::try_from(opcode)
            .ok()
            .map(|it| format!("{it:?}")),
        process_names::Opcode::try_from(opcode)
            .ok()
            .map(|it| format!("{it:?}")),
    ];
    names.into_iter().flatten().next()
}

/// The name of a kind of frame.
pub(crate) fn frame(kind: u32) -> String {
    let name = u8::try_from(kind).ok().and_then(kind_name);
    name.map_or_else(|| format!("frame {kind:#x}"), str::to_owned)
}

/// The name of a status.
pub(crate) fn status(code: u32) -> String {
    let status = Status::try_from(code);
    status.map_or_else(|_| format!("status {code}"), |status| format!("{status:?}"))
}

/// A number of bytes.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024 && value % 1024 == 0 && unit + 1 < UNITS.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value} {}", UNITS[unit])
}

/// A time for people.
pub(crate) fn time(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_and_times_are_short() {
        let sizes = [0, 8, 1024, 1025, 4096, 3 << 20, u64::MAX].map(size);
        let expected = [
            "0 B",
            "8 B",
            "1 KiB",
            "1025 B",
            "4 KiB",
            "3 MiB",
            "18446744073709551615 B",
        ];
        assert_eq!(sizes, expected);
        let times = [999, 1_000, 1_250_000, 2_000_000_000].map(time);
        assert_eq!(times, ["999 ns", "1.0 µs", "1.2 ms", "2.0 s"]);
    }

    #[test]
    fn every_kind_and_status_has_a_name_and_others_have_their_number() {
        assert_eq!(frame(u32::from(qnic_abi::rdma::kind::WRITE)), "Write");
        assert_eq!(frame(0x1ff), "frame 0x1ff");
        assert_eq!(status(0), "Ok");
        assert_eq!(status(99_999), "status 99999");
    }
}
