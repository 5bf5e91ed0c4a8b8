//! Models of the completion queue (Q4): this library's reader against the NIC's writer.
//!
//! The process looks up names that no process has: each such command has a completion, and nothing
//! else. The words of one entry are loom's, and those that the two sides tell each other by.

use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETIONS_WAITING, COMPLETION_ENTRIES, COMPLETION_TAIL,
};
use qnic_abi::process_names::{NameAction, NameCommand, ProcessName};
use qnic_abi::window::COMPLETION_HEAD;

use super::*;
use crate::core::messages::ring::CompletionReader;

/// Commands that are published before the NIC reads them: half of its queue.
const BATCH: u64 = 32;

/// What the process's thread uses.
struct Side {
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
        let take = |entry: &CompletionEntry| {
            assert_eq!(
                entry.status.get(),
                Status::NameNotFound.code(),
                "half an entry"
            );
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
/// one command more.
fn model(before: u64) -> (Box<Model>, Side) {
    let window = [COMPLETION_HEAD, WAKE_REQUEST];
    let first = completion_offset(before);
    let entry = (first..first + size_of::<CompletionEntry>()).step_by(8);
    let area = [COMPLETION_TAIL, COMPLETIONS_WAITING]
        .into_iter()
        .chain(entry);
    let mut model = Model::with_words(window, area);
    let mut doorbell = Doorbell::default();
    for number in 0..=before {
        let mut command = NameCommand::command();
        command.handle = number.into();
        command.action = NameAction::LookUp as u8;
        command.name = ProcessName::new("absent", 0).unwrap();
        let (window, area) = (&model.window, &model.host_area);
        let command = Command::new(&command.descriptor(), &[]);
        command.publish(window, area, number, &mut doorbell);
        model.nic.handle_doorbell(0);
        if number < before && (number % BATCH == BATCH - 1 || number + 1 == before) {
            model.poll();
        }
    }
    let side = Side {
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

fn completions_come_in_order(before: u64) {
    check(move || {
        let (model, mut side) = model(before);
        let (doorbell, wake) = (side.doorbell.clone(), side.woken.clone());
        let commands = before + 1;
        let nic = loom::thread::spawn(move || model.complete(commands, &doorbell, &wake));
        let handles = side.take(commands as usize);
        assert!(handles.into_iter().eq(0..commands));
        nic.join().unwrap();
        assert!(side.drain().is_empty());
    });
}

/// An entry that is seen is whole, and a process that sleeps is woken for it.
#[test]
fn a_completion_is_read_whole() {
    completions_come_in_order(0);
}

/// The queue is full. Either the NIC sees the room that the process makes, or the process sees that
/// a completion waits, and rings; and no entry is overwritten before it is read.
#[test]
fn a_completion_that_waits_for_room_is_not_lost() {
    completions_come_in_order(COMPLETION_ENTRIES);
}
