//! Commands about rings, in the window of the context. The NIC ends none of them, so nothing waits here
//! but for room.

use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::host_area::HEAD;
use qnic_abi::shared::Ordering;
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand, SOLICITED_ONLY};
use qnic_abi::SharedMemory;
use qnic_shared::window::Command;

use super::context::Context;
use super::objects::{CompletionQueue, QueuePair};
use crate::device::Window;
use crate::error::CallError;
use crate::memory::MemoryManager;
use crate::platform::{HostArea, Lock};

/// How long a command waits for room, in nanoseconds.
const ROOM_NS: u64 = 1_000_000_000;

impl<P: MemoryManager> Context<P> {
    /// Has the NIC look at the send queue of a queue pair.
    ///
    /// # Errors
    /// `NoDevice`; `TimedOut`: the NIC reads no commands.
    pub fn send(&self, queue_pair: &QueuePair<P>) -> Result<(), CallError> {
        let mut command = VerbsSendCommand {
            qp: queue_pair.number().into(),
            ..VerbsSendCommand::command()
        };
        let own = self.device.geometry.node;
        command.header.remote_node = queue_pair.peer().unwrap_or(own).0.into();
        self.put(&command.descriptor())
    }

    /// Has the NIC say when a completion queue has an entry behind those that are there now.
    ///
    /// # Errors
    /// As of [`Context::send`].
    pub fn arm(&self, queue: &CompletionQueue<P>, solicited: bool) -> Result<(), CallError> {
        let command = VerbsArmCommand {
            cq: queue.number().into(),
            flags: if solicited { SOLICITED_ONLY } else { 0 }.into(),
            seen: queue.ring().producer().into(),
            ..VerbsArmCommand::command()
        };
        self.put(&command.descriptor())
    }

    fn put(&self, command: &Descriptor) -> Result<(), CallError> {
        let platform = &self.device.platform;
        let mut until = None;
        while !self.try_put(command)? {
            let now = platform.now_ns();
            if now >= *until.get_or_insert(now.saturating_add(ROOM_NS)) {
                return Err(CallError::TimedOut);
            }
            platform.yield_processor();
        }
        Ok(())
    }

    /// Puts a command into the queue; false: it has no room.
    fn try_put(&self, command: &Descriptor) -> Result<bool, CallError> {
        let device = &self.device;
        if !device.is_alive() {
            return Err(CallError::NoDevice);
        }
        let area = self.state.wake.host_area.memory();
        let window = Window::new(device.platform.sram(), &device.geometry, self.state.vni);
        let counts = device.geometry.counts;
        self.commands.with(|commands| {
            // Acquire: the slot is written only after the NIC has zeroed it (partner: the NIC's release
            // store of the head).
            let head = area.load_u64(HEAD, Ordering::Acquire);
            let number = commands.next;
            if number.saturating_sub(head) >= u64::from(counts.command_entries) {
                return Ok(false);
            }
            device.with_windows(|| {
                Command::new(command, &[]).store(&window, counts.place(number));
                commands.next += 1;
                if commands.doorbell.must_ring(&window, area, number) {
                    device.platform.ring_doorbell(self.doorbell);
                }
                true
            })
        })
    }
}
