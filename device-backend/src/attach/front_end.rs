//! The vhost-user messages of one connection.
//!
//! State that the front end builds up message by message stays here; the engine
//! gets a queue when it is complete and enabled. Every call waits for the engine, so
//! its effect precedes the front end's next message.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use qnic_abi::attach::{CONTROL_QUEUE, EVENT_QUEUE, FIRST_DOORBELL, YIELDING};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vhost::VhostUserMemoryRegionBase;

use super::mapper::Mapper;
use super::vring::Vring;
use super::Attachment;
use crate::engine::{Context, NicPort};
use crate::memory::table::{MappedTable, TableEntry};
use crate::memory::GuestMemory;
use crate::notifier::Notifier;
use crate::throttle::throttled;

const VERSION_1: u64 = 1 << 32;

/// `VIRTIO_F_ORDER_PLATFORM`: the guest orders its accesses to queues with the fences
/// that real devices need. When QEMU emulates one processor, the weaker fences between
/// the guest's own processors do not order its accesses for a thread of the host: a kick
/// or an interrupt that was suppressed a moment too late would be lost for good.
const ORDER_PLATFORM: u64 = 1 << 36;

/// Virtio features offered.
const FEATURES: u64 =
    VERSION_1 | ORDER_PLATFORM | YIELDING | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Protocol features offered.
const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::BACKEND_SEND_FD)
    .union(VhostUserProtocolFeatures::SHMEM)
    .union(VhostUserProtocolFeatures::RESET_DEVICE);

/// Requests that belong to features that are not offered: each fails with its reason.
macro_rules! unsupported {
    ($($name:ident($($argument:ty),*) -> $response:ty: $reason:literal;)*) => {$(
        fn $name(&mut self, $(_: $argument),*) -> Result<$response> {
            Err(Error::InvalidOperation($reason))
        }
    )*};
}

pub(crate) struct FrontEnd {
    nic: Arc<Attachment>,
    table: MappedTable,
    vrings: Vec<Vring>,
    protocol_features: VhostUserProtocolFeatures,
    /// A copy of the next backend channel's descriptor, taken before the message
    /// that brings it is handled. By it the channel can be shut down.
    pub(super) next_channel: Option<UnixStream>,
    /// There once the channel to the front end has come.
    pub(super) mapper: Option<Mapper>,
    /// Whether the device is started; the first enabled queue starts it.
    started: bool,
    /// Numbers the starts, of all connections of this NIC.
    pub(super) epoch: u64,
    /// The connection survives the last error.
    pub(super) refused: bool,
}

impl FrontEnd {
    /// A front end that has sent nothing yet. `epoch` is the number of the last start.
    pub(crate) fn new(nic: Arc<Attachment>, epoch: u64) -> Self {
        let vrings = std::iter::repeat_with(Vring::default).take(nic.queues);
        FrontEnd {
            vrings: vrings.collect(),
            nic,
            table: MappedTable::default(),
            protocol_features: VhostUserProtocolFeatures::empty(),
            next_channel: None,
            mapper: None,
            started: false,
            epoch,
            refused: false,
        }
    }

    /// Drops everything that the front end gave. Waits for the engine.
    pub(crate) fn disconnect(&mut self) {
        self.mapper = None;
        let _ = self.ask(NicPort::disconnect);
    }

    /// Runs `work` with the NIC on the engine thread, and waits for its result.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut NicPort, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        self.nic.ask(work).map_err(|error| {
            tracing::debug!(nic = self.nic.name, "{error}");
            Error::BackendInternalError
        })
    }

    /// Fails a request without ending the connection.
    fn refuse<T>(&mut self) -> Result<T> {
        self.refused = true;
        Err(Error::InvalidParam)
    }

    /// Notes rings that are not aligned: their queue will not start. Returns false if there is no
    /// such queue.
    pub(super) fn misaligned_rings(&mut self, index: u32, rings: [u64; 3]) -> bool {
        let vring = self.vring(index);
        vring.map(|vring| vring.addresses = Some(rings)).is_ok()
    }

    /// Whether messages are acknowledged that ask for it.
    pub(super) fn acknowledges(&self) -> bool {
        let reply_ack = VhostUserProtocolFeatures::REPLY_ACK;
        self.protocol_features.contains(reply_ack)
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        self.vrings.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// Takes an eventfd. A descriptor that is no eventfd counts as not given.
    fn notifier(&mut self, what: &str, index: u8, file: Option<File>) -> Option<Notifier> {
        match file.map(|file| Notifier::adopt(file.into())).transpose() {
            Ok(notifier) => notifier,
            Err(error) => {
                throttled!(self.nic, warn, index, "{what}: {error}");
                None
            }
        }
    }

    /// The first queue of a start was enabled: the SRAM must be mapped.
    fn start_device(&mut self) -> Result<()> {
        if self.started {
            return Ok(());
        }
        self.started = true;
        self.epoch += 1;
        let epoch = self.epoch;
        let base = |queue: usize| self.vrings.get(queue).map_or(0, |vring| vring.base as u16);
        let indices = [base(CONTROL_QUEUE), base(EVENT_QUEUE)];
        let continues = self.ask(move |port, cx| port.start(cx, epoch, indices))?;
        match &self.mapper {
            // The SRAM is still mapped.
            _ if continues => {}
            Some(mapper) => mapper.map(epoch),
            None => throttled!(
                self.nic,
                error,
                features = ?self.protocol_features,
                "the front end offers no channel for SHMEM_MAP, so the guest cannot see the SRAM; \
                 QEMU 11 or newer is needed"
            ),
        }
        Ok(())
    }

    fn start_queue(&mut self, index: u32) -> Result<()> {
        let queue = index as usize;
        let doorbell = queue >= FIRST_DOORBELL;
        let vring = self.vrings.get(queue).ok_or(Error::InvalidParam)?;
        let started = match vring.setup(&self.table, doorbell) {
            Ok(None) => Ok(()),
            Ok(Some(setup)) => self.ask(move |port, cx| port.start_queue(cx, queue, setup))?,
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            throttled!(self.nic, warn, queue, "the queue cannot start: {error}");
        }
        Ok(())
    }

    /// Stops a queue, and keeps its available index if it ran.
    fn stop_queue(&mut self, index: u32) -> Result<()> {
        self.started = false;
        let queue = index as usize;
        let stopped = self.ask(move |port, cx| port.stop_queue(cx, queue))?;
        if let Some(base) = stopped {
            self.vring(index)?.base = u32::from(base);
        }
        Ok(())
    }

    /// The device stops: nothing accesses the guest's memory when this returns.
    fn stop_device(&mut self) -> Result<()> {
        self.started = false;
        for vring in &mut self.vrings {
            vring.enabled = false;
        }
        self.ask(NicPort::reset)
    }

    fn map_memory(&self, entries: Vec<TableEntry>) -> anyhow::Result<(MappedTable, GuestMemory)> {
        let table = MappedTable::map(entries, self.nic.sram_identity, &self.table)?;
        let memory = table.memory()?;
        Ok((table, memory))
    }
}

impl VhostUserBackendReqHandlerMut for FrontEnd {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_device()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            throttled!(
                self.nic,
                warn,
                features = format!("{features:#x}"),
                "the front end wants features that were not offered"
            );
            return self.refuse();
        }
        self.ask(move |port, _| port.yielding = features & YIELDING != 0)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL_FEATURES)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.protocol_features = VhostUserProtocolFeatures::from_bits_truncate(features);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let entry = |(region, file): (&VhostUserMemoryRegion, File)| TableEntry {
            guest_address: region.guest_phys_addr,
            length: region.memory_size,
            user_address: region.user_addr,
            offset: region.mmap_offset,
            file,
        };
        let entries = regions.iter().zip(files).map(entry).collect();
        let mapped = self.map_memory(entries).inspect_err(|error| {
            throttled!(self.nic, error, "memory table refused: {error}");
        });
        let refused = mapped.is_err();
        let (table, memory) = mapped.unwrap_or_default();
        self.ask(move |port, cx| port.set_memory(cx, memory))?;
        self.table = table;
        if refused {
            return self.refuse();
        }
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.vring(index)?.size = num;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.vring(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.vring(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.vring(index)?;
        self.stop_queue(index)?;
        let vring = self.vring(index)?;
        vring.kick = None;
        vring.enabled = false;
        Ok(VhostUserVringState::new(index, vring.base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = self.notifier("kick", index, fd);
        let vring = self.vring(u32::from(index))?;
        vring.kick = kick;
        if vring.enabled {
            self.start_queue(u32::from(index))?;
        }
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = self.notifier("call", index, fd);
        let copy = call.as_ref().and_then(|call| call.try_clone().ok());
        let vring = self.vring(u32::from(index))?;
        vring.call = call;
        if !vring.enabled {
            return Ok(());
        }
        let queue = usize::from(index);
        self.ask(move |port, _| port.set_call(queue, copy))
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = self.notifier("error", index, fd);
        self.vring(u32::from(index))?.error = error;
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let vring = self.vring(index)?;
        if vring.enabled == enable {
            return Ok(());
        }
        vring.enabled = enable;
        if enable {
            self.start_device()?;
            return self.start_queue(index);
        }
        self.stop_queue(index)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let space = &self.nic.config_space;
        let byte = |at: u32| space.get(at as usize).copied().unwrap_or(0);
        let end = offset.saturating_add(size);
        Ok((offset..end).map(byte).collect())
    }

    /// Nothing in the configuration space can be written.
    fn set_config(
        &mut self,
        _offset: u32,
        _bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        Ok(())
    }

    fn set_backend_req_fd(&mut self, backend: Backend) {
        let channel = self.next_channel.take();
        if self.mapper.is_some() {
            return;
        }
        let features = self.protocol_features;
        backend.set_reply_ack_flag(features.contains(VhostUserProtocolFeatures::REPLY_ACK));
        backend.set_shmem_flag(features.contains(VhostUserProtocolFeatures::SHMEM));
        match Mapper::start(self.nic.clone(), backend, channel) {
            Ok(mapper) => self.mapper = Some(mapper),
            Err(error) => tracing::error!(nic = self.nic.name, "cannot start a thread: {error}"),
        }
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(1, &[self.nic.sram_bytes]))
    }

    unsupported! {
        set_gpu_socket(GpuBackend) -> (): "no GPU";
        get_shared_object(VhostUserSharedMsg) -> File: "no shared objects";
        get_inflight_fd(&VhostUserInflight) -> (VhostUserInflight, File): "no inflight tracking";
        set_inflight_fd(&VhostUserInflight, File) -> (): "no inflight tracking";
        get_max_mem_slots() -> u64: "no memory slots";
        add_mem_region(&VhostUserSingleMemoryRegion, File, Option<bool>)
            -> Option<VhostUserMemoryRegionBase>: "no memory slots";
        remove_mem_region(&VhostUserSingleMemoryRegion) -> (): "no memory slots";
        set_device_state_fd(VhostTransferStateDirection, VhostTransferStatePhase, File)
            -> Option<File>: "no migration";
        check_device_state() -> (): "no migration";
        set_log_base(&VhostUserLog, File) -> (): "no dirty log";
    }
}
