//! A context of libibverbs: a process of its NIC whose window the driver writes to.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use qnic_abi::control::Opcode;
use qnic_abi::VniId;
use zerocopy::{Immutable, IntoBytes};

use super::command_queue::Commands;
use super::table::Table;
use crate::device::control_queue::{Request, Response};
use crate::device::Device;
use crate::error::{CallError, Failure};
use crate::memory::MemoryManager;
use crate::platform::{Lock, NoMemory};
use crate::process::state::ProcessState;

/// The objects of a context. Its calls may come from several threads at once.
pub struct Context<P: MemoryManager> {
    pub(super) device: Arc<Device<P>>,
    pub(super) state: Arc<ProcessState<P>>,
    pub(super) table: Arc<Table<P>>,
    /// The virtqueue whose notification is its doorbell.
    pub(super) doorbell: u16,
    pub(super) commands: P::Mutex<Commands>,
    /// Relaxed: a count that orders nothing.
    numbers: AtomicU32,
    /// Queue pairs. Relaxed: the same.
    pub(super) pairs: AtomicU32,
}

impl<P: MemoryManager> Context<P> {
    pub(crate) fn new(
        device: &Arc<Device<P>>,
        state: &Arc<ProcessState<P>>,
        table: &Arc<Table<P>>,
        doorbell: u16,
    ) -> Result<Self, NoMemory> {
        Ok(Context {
            device: device.clone(),
            state: state.clone(),
            table: table.clone(),
            doorbell,
            commands: P::Mutex::new(Commands::default())?,
            numbers: AtomicU32::new(0),
            pairs: AtomicU32::new(0),
        })
    }

    /// A number that no object of the context has: of a protection domain, for example. From 1 on.
    pub fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Its address space, as given when it was opened.
    pub fn space(&self) -> &P::AddressSpace {
        &self.state.exports.space
    }

    /// The process that it is for its NIC.
    pub fn vni(&self) -> VniId {
        self.state.vni
    }

    pub(super) fn check_open(&self) -> Result<(), CallError> {
        match self.state.open.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(CallError::NotRegistered),
        }
    }

    /// Sends a request about an object of the context.
    pub(super) fn request<B: IntoBytes + Immutable>(
        &self,
        opcode: Opcode,
        body: &B,
    ) -> Result<Response, Failure> {
        self.check_open()?;
        let request = Request::new(opcode, self.state.vni, body);
        let (status, response) = self.device.call(&request)?;
        Failure::check(status)?;
        Ok(response)
    }
}
