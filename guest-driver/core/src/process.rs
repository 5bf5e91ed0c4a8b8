//! One registered process (N1): what it owns, how it waits, how it ends.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::control::{self, Opcode, PROCESS_PHYSICAL};
use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_abi::{uapi, Port, Status, VniId};

use crate::control::Request;
use crate::driver::Driver;
use crate::error::CallError;
use crate::exports::{Exported, Segments};
use crate::platform::{HostArea, Mutex, NoMemory, Platform, SpinLock, Waited, Waiters};

/// What the driver knows about a registered process.
pub(crate) struct ProcessState<P: Platform> {
    pub(crate) vni: VniId,
    pub(crate) port: Port,
    /// It may export physical memory (N25).
    pub(crate) physical: bool,
    pub(crate) space: P::Space,
    pub(crate) host_area: P::HostArea,
    pub(crate) waiters: P::Waiters,
    pub(crate) segments: P::Mutex<Segments<P>>,
    /// Regions in the order of their addresses; room for all is reserved.
    pub(crate) regions: P::SpinLock<Vec<Arc<Exported<P>>>>,
    /// Wake generation; added to with the lock of the slots held.
    generation: AtomicU64,
    /// Generation that poll calls seen.
    seen: AtomicU64,
    /// Imports that it waits for.
    pub(crate) imports: AtomicU32,
    /// False once closed.
    open: AtomicBool,
}

/// A registered process; dropping it takes everything back.
pub struct Process<P: Platform> {
    driver: Arc<Driver<P>>,
    state: Arc<ProcessState<P>>,
}

impl<P: Platform> Driver<P> {
    /// Registers a process (N1). `Ok(None)` when it was refused: the call's
    /// status says why.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`, `NoMemory`.
    pub fn register(
        self: &Arc<Self>,
        space: P::Space,
        pid: u32,
        call: &mut uapi::Register,
    ) -> Result<Option<Process<P>>, CallError> {
        let flags = call.flags.get();
        if flags & !uapi::PHYSICAL != 0 {
            return Err(CallError::Invalid);
        }
        if !self.is_alive() {
            return Err(CallError::NoDevice);
        }
        let physical = flags & uapi::PHYSICAL != 0;
        if physical && !self.platform.may_use_physical() {
            call.status = Status::AccessDenied.code().into();
            return Ok(None);
        }
        let reserved = self
            .slots
            .with(|slots| slots.reserve(Port(call.port.get())));
        let (vni, port) = match reserved {
            Ok(slot) => slot,
            Err(status) => {
                call.status = status.code().into();
                return Ok(None);
            }
        };
        let result = self.introduce(vni, port, space, pid, physical);
        match result {
            Ok(Ok(state)) => {
                let queue = FIRST_DOORBELL as u16 + vni.0 % self.geometry.doorbells.max(1) as u16;
                *call = uapi::Register {
                    status: Status::Ok.code().into(),
                    port: port.0.into(),
                    node: self.geometry.node.0.into(),
                    vni: vni.0.into(),
                    doorbell_value: queue.into(),
                    doorbell_offset: self.platform.doorbell_offset(queue).into(),
                    inline_max: self.inline_max.into(),
                    flags: flags.into(),
                };
                Ok(Some(Process {
                    driver: self.clone(),
                    state,
                }))
            }
            Ok(Err(status)) => {
                self.slots.with(|slots| slots.release(vni));
                call.status = status.code().into();
                Ok(None)
            }
            Err(error) => {
                self.slots.with(|slots| slots.release(vni));
                Err(error)
            }
        }
    }

    /// Makes the state of a process and tells the NIC about it.
    fn introduce(
        &self,
        vni: VniId,
        port: Port,
        space: P::Space,
        pid: u32,
        physical: bool,
    ) -> Result<Result<Arc<ProcessState<P>>, Status>, CallError> {
        let state = Arc::new(ProcessState::new(
            &self.platform,
            vni,
            port,
            space,
            physical,
        )?);
        self.zero_window(vni)?;
        let body = control::NewProcess {
            port: port.0.into(),
            flags: if physical { PROCESS_PHYSICAL } else { 0 }.into(),
            pid: pid.into(),
            host_area: state.host_area.addresses().map(Into::into),
        };
        // Events may come as soon as the NIC knows the process.
        self.slots.with(|slots| slots.publish(state.clone()));
        let status = self
            .call(&Request::new(Opcode::NewProcess, vni, &body))
            .and_then(|reply| self.status(&reply));
        if status != Ok(Status::Ok) {
            let retired = self.slots.with(|slots| slots.retire(vni));
            drop(retired);
        }
        Ok(match status? {
            Status::Ok => Ok(state),
            refused => Err(refused),
        })
    }
}

impl<P: Platform> ProcessState<P> {
    fn new(
        platform: &P,
        vni: VniId,
        port: Port,
        space: P::Space,
        physical: bool,
    ) -> Result<Self, NoMemory> {
        let mut regions = Vec::new();
        regions.try_reserve_exact(SEGMENTS_PER_PROCESS as usize)?;
        Ok(ProcessState {
            vni,
            port,
            physical,
            space,
            host_area: platform.new_host_area()?,
            waiters: platform.new_waiters()?,
            segments: P::Mutex::new(Segments::new()?)?,
            regions: P::SpinLock::new(regions)?,
            generation: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            imports: AtomicU32::new(0),
            open: AtomicBool::new(true),
        })
    }

    /// A wake event has come; the lock of the slots is held. Atomic.
    pub(crate) fn wake(&self) {
        let next = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        self.host_area.store_generation(next);
        // Release; partner: the acquire loads of those who wait.
        self.generation.store(next, Ordering::Release);
        self.waiters.wake_all();
    }

    /// The region that holds a page, and the page's index in it.
    pub(crate) fn find(&self, page: u64) -> Option<(Arc<Exported<P>>, usize)> {
        self.regions.with(|regions| {
            let after = regions.partition_point(|e| e.region.page_numbers().start <= page);
            let exported = regions.get(after.checked_sub(1)?)?;
            Some((exported.clone(), exported.region.index_of(page)?))
        })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl<P: Platform> Process<P> {
    /// Its VNI.
    pub fn vni(&self) -> VniId {
        self.state.vni
    }

    /// Its port.
    pub fn port(&self) -> Port {
        self.state.port
    }

    /// The driver that it is registered with.
    pub fn driver(&self) -> &Arc<Driver<P>> {
        &self.driver
    }

    /// Its address space, as given at registration.
    pub fn space(&self) -> &P::Space {
        &self.state.space
    }

    /// Its host area, to be mapped read-only into the process.
    pub fn host_area(&self) -> &P::HostArea {
        &self.state.host_area
    }

    /// Its waiting threads, for a platform that lets them wait by its own means (poll).
    pub fn waiters(&self) -> &P::Waiters {
        &self.state.waiters
    }

    /// Offset of its window in SRAM.
    pub fn window_offset(&self) -> usize {
        self.driver.geometry.window_offset(self.state.vni)
    }

    /// The virtqueue whose notification is its doorbell.
    pub fn doorbell_queue(&self) -> u16 {
        FIRST_DOORBELL as u16 + self.state.vni.0 % self.driver.geometry.doorbells.max(1) as u16
    }

    /// Says whether calls reach the device: it is there, and the process is not closed.
    pub fn is_open(&self) -> bool {
        self.state.open.load(Ordering::Acquire) && self.driver.is_alive()
    }

    /// Says whether the wake generation differs from the one that was last called
    /// seen, or will not change any more: what poll calls readable. Atomic.
    pub fn is_readable(&self) -> bool {
        // Relaxed: who polls has called it seen before, or lets another thread.
        self.state.generation() != self.state.seen.load(Ordering::Relaxed) || !self.is_open()
    }

    pub(crate) fn check_open(&self) -> Result<(), CallError> {
        if !self.driver.is_alive() {
            Err(CallError::NoDevice)
        } else if !self.state.open.load(Ordering::Acquire) {
            Err(CallError::NotRegistered)
        } else {
            Ok(())
        }
    }

    pub(crate) fn state(&self) -> &Arc<ProcessState<P>> {
        &self.state
    }

    /// Blocks until the wake generation differs from the given one (N17); with
    /// [`uapi::WAIT_SEEN`] calls the present one seen instead.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`, `Interrupted`, `TimedOut`.
    pub fn wait(&self, call: &mut uapi::Wait) -> Result<(), CallError> {
        let flags = call.flags.get();
        if flags & !uapi::WAIT_SEEN != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        if flags & uapi::WAIT_SEEN != 0 {
            let now = self.state.generation();
            self.state.seen.store(now, Ordering::Relaxed);
            call.generation = now.into();
            call.status = Status::Ok.code().into();
            return Ok(());
        }
        let known = call.generation.get();
        let timeout = u64::try_from(call.timeout_ns.get()).ok();
        let ready = || self.state.generation() != known || !self.is_open();
        let waited = self.state.waiters.wait(&ready, timeout);
        self.check_open()?;
        let now = self.state.generation();
        match waited {
            Waited::TimedOut if now == known => Err(CallError::TimedOut),
            Waited::Interrupted if now == known => Err(CallError::Interrupted),
            Waited::Ready | Waited::TimedOut | Waited::Interrupted => {
                call.generation = now.into();
                call.status = Status::Ok.code().into();
                Ok(())
            }
        }
    }

    /// Ends the waits of this process, as a wake event does.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn wake(&self, call: &mut uapi::Wake) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        // With the lock: the generation is added to from several places.
        self.driver.slots.with(|_| self.state.wake());
        call.status = Status::Ok.code().into();
        Ok(())
    }

    /// Starts the command queue again after an error.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn reset_queue(&self, call: &mut uapi::ResetQueue) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        let reply = self
            .driver
            .call(&Request::bare(Opcode::ResetQueue, self.state.vni))?;
        call.status = self.driver.status(&reply)?.code().into();
        Ok(())
    }

    /// Ends the process (N8): the NIC forgets it, its pages leave the table, its
    /// window and port become free. May be called more than once, and is when the
    /// process is dropped. No other call of this process may be under way.
    pub fn close(&self) {
        if !self.state.open.swap(false, Ordering::AcqRel) {
            return;
        }
        let vni = self.state.vni;
        self.state.waiters.wake_all();
        let retired = self.driver.slots.with(|slots| slots.retire(vni));
        drop(retired);
        // An error means that the device is gone or stopped: either way it
        // touches nothing of this process any more.
        let _ = self.driver.call(&Request::bare(Opcode::DeleteProcess, vni));
        self.close_exports();
        self.driver.slots.with(|slots| slots.release(vni));
    }
}

impl<P: Platform> Drop for Process<P> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::RequestError;
    use crate::testing::{register, Fake};
    use qnic_abi::event::{Event, Kind};
    use qnic_abi::SharedMemory;
    use zerocopy::IntoBytes;

    fn wake_event(vni: VniId) -> [u8; 32] {
        let event = Event {
            kind: (Kind::Wake as u32).into(),
            vni: vni.0.into(),
            flags: 0.into(),
            address: 0.into(),
            pages: 0.into(),
            status: 0.into(),
            reserved: 0.into(),
        };
        event.as_bytes().try_into().unwrap()
    }

    fn wait(process: &Process<Fake>, generation: u64, ms: i64) -> Result<u64, CallError> {
        let mut call = uapi::Wait {
            generation: generation.into(),
            timeout_ns: (ms * 1_000_000).into(),
            ..Default::default()
        };
        process.wait(&mut call).map(|()| call.generation.get())
    }

    #[test]
    fn processes_get_windows_of_their_own_and_ports() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let mut call = uapi::Register {
            port: 9.into(),
            ..Default::default()
        };
        let first = driver.register((), 1, &mut call).unwrap().unwrap();
        assert_eq!((call.port.get(), call.node.get()), (9, 7));
        assert_eq!(call.doorbell_value.get(), first.doorbell_queue());
        let mut call = uapi::Register {
            port: 9.into(),
            ..Default::default()
        };
        assert!(driver.register((), 1, &mut call).unwrap().is_none());
        assert_eq!(call.status.get(), Status::PortInUse.code());
        let others: Vec<_> = (0..3).map(|_| register(&driver)).collect();
        let mut call = uapi::Register::default();
        assert!(driver.register((), 1, &mut call).unwrap().is_none());
        assert_eq!(call.status.get(), Status::Exhausted.code());
        assert_eq!(fake.nic().processes.len(), 4);
        let vnis: std::collections::BTreeSet<_> = others.iter().map(Process::vni).collect();
        assert!(vnis.len() == 3 && !vnis.contains(&first.vni()));
        drop(others);
        drop(first);
        assert!(fake.nic().processes.is_empty());
    }

    #[test]
    fn a_window_is_zero_when_its_process_gets_it() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        for vni in 0..4 {
            let offset = driver.geometry().window_offset(VniId(vni));
            for word in 0..qnic_abi::window::WINDOW_BYTES / 8 {
                fake.sram
                    .store_u64(offset + word * 8, u64::MAX, Ordering::Relaxed);
            }
        }
        let process = register(&driver);
        let start = process.window_offset();
        for word in 0..qnic_abi::window::WINDOW_BYTES / 8 {
            assert_eq!(fake.sram.load_u64(start + word * 8, Ordering::Relaxed), 0);
        }
        let end = start + qnic_abi::window::WINDOW_BYTES;
        assert_eq!(fake.sram.load_u64(end, Ordering::Relaxed), u64::MAX);
    }

    #[test]
    fn a_refused_registration_leaves_nothing() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        for _ in 0..10 {
            let refusal = Ok(Status::PortInUse.code());
            fake.nic().next.push_back(refusal);
            let mut call = uapi::Register::default();
            assert!(driver.register((), 1, &mut call).unwrap().is_none());
            assert_eq!(call.status.get(), Status::PortInUse.code());
        }
        let mut call = uapi::Register {
            flags: 2.into(),
            ..Default::default()
        };
        let result = driver.register((), 1, &mut call);
        assert_eq!(result.err(), Some(CallError::Invalid));
        register(&driver);
    }

    #[test]
    fn a_wake_event_ends_a_wait() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        assert!(!process.is_readable());
        assert_eq!(wait(&process, 0, 1), Err(CallError::TimedOut));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&process, 0, -1));
            let _ = driver.handle_event(&wake_event(process.vni()));
            assert_eq!(waiter.join().unwrap(), Ok(1));
        });
        assert_eq!(process.host_area().generation.load(Ordering::Relaxed), 1);
        assert_eq!(wait(&process, 0, 0), Ok(1));
        // Of nobody's VNI, and of one beyond all: nothing happens.
        let _ = driver.handle_event(&wake_event(VniId(3)));
        let _ = driver.handle_event(&wake_event(VniId(u16::MAX)));
    }

    fn see(process: &Process<Fake>) -> Result<u64, CallError> {
        let mut call = uapi::Wait {
            flags: uapi::WAIT_SEEN.into(),
            ..Default::default()
        };
        process.wait(&mut call).map(|()| call.generation.get())
    }

    #[test]
    fn poll_sees_wake_events_until_they_are_called_seen() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        assert!(!process.is_readable());
        let _ = driver.handle_event(&wake_event(process.vni()));
        assert_eq!(wait(&process, 0, 0), Ok(1));
        assert!(process.is_readable(), "a waiting thread takes nothing away");
        assert_eq!(see(&process), Ok(1));
        assert!(!process.is_readable());
        let mut unknown = uapi::Wait {
            flags: 2.into(),
            ..Default::default()
        };
        assert_eq!(process.wait(&mut unknown), Err(CallError::Invalid));
        driver.begin_removal();
        assert!(process.is_readable(), "that the device is gone is news");
        assert_eq!(see(&process), Err(CallError::NoDevice));
    }

    #[test]
    fn a_process_can_wake_itself() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let (process, other) = (register(&driver), register(&driver));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&process, 0, -1));
            process.wake(&mut uapi::Wake::default()).unwrap();
            assert_eq!(waiter.join().unwrap(), Ok(1));
        });
        assert!(process.is_readable() && !other.is_readable());
        let mut malformed = uapi::Wake {
            reserved: 1.into(),
            ..Default::default()
        };
        assert_eq!(process.wake(&mut malformed), Err(CallError::Invalid));
        process.close();
        let closed = process.wake(&mut uapi::Wake::default());
        assert_eq!(closed, Err(CallError::NotRegistered));
    }

    #[test]
    fn removal_wakes_everybody_and_fails_every_call() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&process, 0, -1));
            driver.begin_removal();
            assert_eq!(waiter.join().unwrap(), Err(CallError::NoDevice));
        });
        fake.nic().stopped = true;
        driver.detach();
        assert_eq!(wait(&process, 0, 0), Err(CallError::NoDevice));
        let reset = process.reset_queue(&mut uapi::ResetQueue::default());
        assert_eq!(reset, Err(CallError::NoDevice));
        let import = process.import(&mut uapi::Import::default());
        assert_eq!(import, Err(CallError::NoDevice));
        let register = driver.register((), 1, &mut uapi::Register::default());
        assert_eq!(register.err(), Some(CallError::NoDevice));
        assert_eq!(
            driver.info(&mut uapi::Info::default()),
            Err(CallError::NoDevice)
        );
    }

    #[test]
    fn a_nic_that_does_not_answer_is_stopped() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        fake.nic().next.push_back(Err(RequestError::TimedOut));
        let result = process.reset_queue(&mut uapi::ResetQueue::default());
        assert_eq!(result, Err(CallError::NoDevice));
        assert!(fake.nic().stopped && !driver.is_alive());
        assert!(fake.log().contains("broken"), "{}", fake.log());
    }

    #[test]
    fn a_nic_that_died_is_found_out_and_waiters_are_told() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        fake.nic().next.push_back(Err(RequestError::TimedOut));
        driver.check_device();
        assert!(driver.is_alive(), "nobody needs it, so nobody asks");
        fake.nic().next.clear();
        let process = register(&driver);
        driver.check_device();
        assert!(driver.is_alive());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&process, 0, -1));
            fake.nic().next.push_back(Err(RequestError::TimedOut));
            driver.check_device();
            assert_eq!(waiter.join().unwrap(), Err(CallError::NoDevice));
        });
        assert!(fake.nic().stopped);
    }

    #[test]
    fn closing_twice_is_closing_once() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        process.close();
        let again = register(&driver);
        process.close();
        drop(process);
        assert!(fake.nic().processes.contains_key(&again.vni().0));
        assert!(again.is_open());
    }
}
