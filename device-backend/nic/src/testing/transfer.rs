//! Commands of a party, built in the order in which they are read.

use qnic_abi::client::Command;
use qnic_abi::rdma::Opcode;

use super::net::{page, PAGE};
use super::{Party, SimSegment};

/// A command in the making. It can be issued several times.
#[derive(Debug, Clone)]
pub struct Transfer<'a> {
    issuer: &'a Party,
    remote: SimSegment,
    payload: Vec<u8>,
    /// What it is so far.
    pub command: Command,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(issuer: &'a Party, remote: SimSegment, command: Command) -> Self {
        Transfer {
            issuer,
            remote,
            payload: Vec::new(),
            command,
        }
    }

    pub(super) fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    fn is_read(&self) -> bool {
        self.command.opcode == Opcode::Read as u8
    }

    fn local_at(self, offset: u64) -> Self {
        let local = self.issuer.segment.at(offset);
        self.with(|command| command.local = local)
    }

    fn remote_at(self, offset: u64) -> Self {
        let remote = self.remote.to(offset);
        self.with(|command| command.remote = remote)
    }

    /// The offset at the source.
    pub fn from(self, offset: u64) -> Self {
        match self.is_read() {
            true => self.remote_at(offset),
            false => self.local_at(offset),
        }
    }

    /// The offset at the destination.
    pub fn to(self, offset: u64) -> Self {
        match self.is_read() {
            true => self.local_at(offset),
            false => self.remote_at(offset),
        }
    }

    /// The length.
    pub fn bytes(self, length: u64) -> Self {
        self.with(|command| command.length = length)
    }

    /// To whole pages of the destination; the source lies off a border.
    pub fn pages(self, pages: std::ops::Range<u64>) -> Self {
        let length = (pages.end - pages.start) * PAGE;
        let from = self.from(pages.start * PAGE);
        from.to(page(pages.start)).bytes(length)
    }

    /// With these masks: operands `z` and `t` of an atomic command.
    pub fn masks(self, masks: [u64; 2]) -> Self {
        let bytes = masks.map(u64::to_le_bytes).concat();
        let masked = self.with(|command| command.inline_length = bytes.len() as u8);
        masked.payload(&bytes)
    }

    /// With a completion of its own.
    pub fn handle(self, handle: u64) -> Self {
        self.with(|command| command.handle = handle)
    }

    /// With a notification.
    pub fn notify(self, notification: u32) -> Self {
        self.with(|command| command.notification = Some(notification))
    }

    /// With its result in that record.
    pub fn record(self, record: u16) -> Self {
        self.with(|command| command.record = record)
    }

    /// With any other change.
    pub fn with(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.command);
        self
    }

    /// Issues it; returns its number, or `None` if the queue is full.
    pub fn try_issue(&self) -> Option<u64> {
        self.issuer.issue(&self.command, &self.payload)
    }

    /// Issues it; returns its number.
    #[track_caller]
    pub fn issue(&self) -> u64 {
        self.try_issue().expect("room in the queue")
    }

    /// Issues it and polls all NICs until none has work; returns its number.
    #[track_caller]
    pub fn run(&self) -> u64 {
        let number = self.issue();
        self.issuer.net.run();
        number
    }
}
