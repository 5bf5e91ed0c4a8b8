//! Models of the completion queue (Q4, N12): this library's reader against the NIC's writer.
//!
//! The commands end as soon as they are read, in two ways of the NIC:
//!
//! | command | ends as | has besides |
//! |---|---|---|
//! | lookup of a name that no process has | a command of a protocol | nothing |
//! | write with a handle to a node without a route | an operation | error record and counter |
//!
//! The words of one entry are loom's, and those that the two sides tell each other by.

use qnic_abi::host_area::{
    completion_offset, CompletionEntry, CompletionKind, COMPLETIONS_WAITING, COMPLETION_ENTRIES,
    COMPLETION_TAIL,
};
use qnic_abi::process_names::{NameAction, NameCommand, ProcessName};
use qnic_abi::window::COMPLETION_HEAD;

use super::*;
use crate::core::messages::ring::CompletionReader;

/// Commands that are published before the NIC reads them: half of its queue.
const BATCH: u64 = 32;

/// What the commands of a model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Names,
    Transfers,
}

impl Kind {
    fn command(self, handle: u64) -> Command {
        if self == Kind::Transfers {
            return write_with(handle);
        }
        let mut command = NameCommand::command();
        command.handle = handle.into();
        command.action = NameAction::LookUp as u8;
        command.name = ProcessName::new("absent", 0).unwrap();
        Command::new(&command.descriptor(), &[])
    }

    /// Kind and status of the entries.
    fn end(self) -> (u8, Status) {
        match self {
            Kind::Names => (CompletionKind::Name as u8, Status::NameNotFound),
            Kind::Transfers => (CompletionKind::Transfer as u8, FAILED),
        }
    }
}

/// What the process's thread uses.
struct Side {
    kind: Kind,
    window: Words,
    area: Words,
    reader: CompletionReader,
    wakes: WakeRequests,
    doorbell: Rc<Notify>,
    woken: Rc<Notify>,
}

impl Side {
    /// Takes all entries that are there; returns their handles.
    fn drain(&mut self) -> Vec<u64> {
        let mut handles = Vec::new();
        let (kind, status) = self.kind.end();
        let take = |entry: &CompletionEntry| {
            let end = (entry.kind, entry.status.get());
            assert_eq!(end, (kind, status.code()), "half an entry");
            handles.push(entry.handle.get());
        };
        if self.reader.drain(&self.window, &self.area, take) {
            self.doorbell.notify();
        }
        handles
    }

    /// Takes entries until so many have come; sleeps while there are none.
    fn take(&mut self, count: usize) -> Vec<u64> {
        let mut handles = Vec::new();
        while handles.len() < count {
            self.wakes.request(&self.window);
            let more = self.drain();
            if more.is_empty() {
                self.woken.wait();
            }
            handles.extend(more);
        }
        handles
    }
}

/// A NIC whose completion queue has had `before` entries, none of which was read, and that finds
/// one command more. Handles count from 1.
fn model(kind: Kind, before: u64) -> (Box<Model>, Side) {
    let window = [COMPLETION_HEAD, WAKE_REQUEST];
    let first = completion_offset(before);
    let entry = (first..first + size_of::<CompletionEntry>()).step_by(8);
    let told = [COMPLETION_TAIL, COMPLETIONS_WAITING, WRITES_DONE];
    let area = told.into_iter().chain(entry);
    let mut model = Model::with_words(window, area);
    let mut doorbell = Doorbell::default();
    for number in 0..=before {
        let (window, area) = (&model.window, &model.host_area);
        let command = kind.command(number + 1);
        command.publish(window, area, number, &mut doorbell);
        model.nic.handle_doorbell(0);
        if number < before && (number % BATCH == BATCH - 1 || number + 1 == before) {
            model.poll();
        }
    }
    let side = Side {
        kind,
        wakes: WakeRequests::new(&model.window),
        window: model.window.clone(),
        area: model.host_area.clone(),
        reader: CompletionReader::default(),
        doorbell: Rc::new(Notify::new()),
        woken: Rc::new(Notify::new()),
    };
    (model, side)
}

impl Model {
    /// Runs the NIC until no completion waits for room and it has fallen asleep.
    fn complete(mut self: Box<Self>, commands: u64, doorbell: &Notify, wake: &Notify) {
        loop {
            self.poll();
            while self.nic.poll_event().is_some() {
                wake.notify();
            }
            if !self.nic.prepare_sleep(&self.node) {
                continue;
            }
            let budgets = self.nic.budgets();
            let waiting = |name: &str| budgets.iter().any(|it| it.name == name && it.used > 0);
            if self.nic.counters().commands == commands && !waiting("completions_of_process") {
                return;
            }
            doorbell.wait();
            self.nic.handle_doorbell(0);
        }
    }
}

fn completions_come_in_order(kind: Kind, before: u64) {
    check(move || {
        let (model, mut side) = model(kind, before);
        let (doorbell, wake) = (side.doorbell.clone(), side.woken.clone());
        let commands = before + 1;
        let nic = loom::thread::spawn(move || model.complete(commands, &doorbell, &wake));
        let handles = side.take(commands as usize);
        assert!(handles.into_iter().eq(1..=commands));
        nic.join().unwrap();
        assert!(side.drain().is_empty(), "none is told twice");
    });
}

/// An entry that is seen is whole, and a process that sleeps is woken for it.
#[test]
fn a_completion_is_read_whole() {
    completions_come_in_order(Kind::Names, 0);
}

#[test]
fn a_completion_of_a_transfer_is_read_whole() {
    completions_come_in_order(Kind::Transfers, 0);
}

/// The queue is full. Either the NIC sees the room that the process makes, or the process sees that
/// a completion waits, and rings; and no entry is overwritten before it is read.
#[test]
fn a_completion_that_waits_for_room_is_not_lost() {
    completions_come_in_order(Kind::Names, COMPLETION_ENTRIES);
}

#[test]
fn a_completion_of_a_transfer_that_waits_for_room_is_not_lost() {
    completions_come_in_order(Kind::Transfers, COMPLETION_ENTRIES);
}

/// A process that sees a transfer counted finds its entry.
#[test]
fn a_transfer_has_its_entry_before_a_counter_says_so() {
    check(|| {
        let (model, mut side) = model(Kind::Transfers, 0);
        let (doorbell, wake) = (side.doorbell.clone(), side.woken.clone());
        let nic = loom::thread::spawn(move || model.complete(1, &doorbell, &wake));
        if completion::done(&side.area, 0, Operation::Write) == 1 {
            assert_eq!(side.drain(), [1]);
        }
        nic.join().unwrap();
    });
}
