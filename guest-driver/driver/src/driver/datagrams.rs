//! How the driver becomes a process of its own NIC: when the first datagram port is bound (H1).

use alloc::sync::Arc;

use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::control::{self, Opcode, PROCESS_DRIVER};
use qnic_abi::counters::CounterPage;
use qnic_abi::datagram::DRIVER_PORT;
use qnic_abi::VniId;

use super::lifecycle::Driver;
use crate::datagram::{bind, BindError, Binding, Counters, Engine, PortConfig, Upper};
use crate::device::control_queue::Request;
use crate::device::Wake;
use crate::error::Failure;
use crate::memory::MemoryManager;
use crate::platform::{HostArea, Level, Lock};

impl<P: MemoryManager> Driver<P> {
    /// Binds a datagram port for an upper module (H1). Everything that the port may hold is allocated
    /// here, except the pages to receive in.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_datagrams(
        &self,
        number: u16,
        config: &PortConfig,
        upper: Arc<dyn Upper<P>>,
    ) -> Result<Binding<P>, BindError> {
        self.binding.with(|()| {
            let engine = match self.engine() {
                Some(engine) => engine,
                None => self.start_engine()?,
            };
            bind(&engine, number, config, upper)
        })
    }

    /// Serves the datagram ports: calls upper modules, a bounded number of times, and sends waiting
    /// messages (H5). The platform calls it when [`crate::Platform::schedule_datagrams`] asked for it;
    /// additional calls do no harm. Atomic.
    pub fn serve_datagrams(&self) {
        if let Some(engine) = self.engine() {
            engine.serve_scheduled();
        }
    }

    /// A page of the counters of the datagram layer.
    pub(super) fn datagram_counters(&self, first: u32) -> CounterPage {
        match self.engine() {
            Some(engine) => CounterPage::of(&engine.counters, first),
            None => CounterPage::of(&Counters::default(), first),
        }
    }

    /// Handles a wake event for a VNI. Atomic.
    pub(super) fn wake_datagrams(&self, vni: VniId) {
        if let Some(engine) = self.engine().filter(|engine| engine.vni == vni) {
            engine.woken();
        }
    }

    /// Checks on the engine: it may have found the NIC broken, or need to learn that the NIC is gone.
    pub(super) fn check_datagrams(&self) {
        let Some(engine) = self.engine() else { return };
        if engine.has_failed() {
            self.device.declare_broken(format_args!(
                "it has stopped the command queue of the driver"
            ));
        }
        if !self.device.is_attached() {
            engine.finish();
        }
    }

    /// The NIC accesses no memory any more: upper modules get their buffers back.
    pub(super) fn finish_datagrams(&self) {
        if let Some(engine) = self.engine() {
            engine.finish();
        }
    }

    fn engine(&self) -> Option<Arc<Engine<P>>> {
        self.engine.with(|engine| engine.clone())
    }

    /// Registers the driver with the NIC.
    fn start_engine(&self) -> Result<Arc<Engine<P>>, BindError> {
        if !self.is_alive() {
            return Err(BindError::NoDevice);
        }
        let reserved = self.slots.with(|slots| slots.reserve_driver());
        let vni = reserved.map_err(|_| BindError::Exhausted)?;
        let started = self.register_engine(vni);
        if started.is_err() {
            drop(self.device.wakes.set(vni, None));
            let engine = self.engine.with(Option::take);
            drop(engine);
            self.slots.with(|slots| slots.release(vni));
        }
        started
    }

    fn register_engine(&self, vni: VniId) -> Result<Arc<Engine<P>>, BindError> {
        let wake = Wake::new(self.platform())?;
        self.device.zero_window(vni)?;
        let body = control::NewProcess {
            port: DRIVER_PORT.into(),
            flags: PROCESS_DRIVER.into(),
            pid: 0.into(),
            host_area: wake.host_area.addresses().map(Into::into),
        };
        let doorbell = FIRST_DOORBELL as u16 + vni.0 % self.geometry().doorbells.max(1) as u16;
        let engine = Arc::new(Engine::new(&self.device, vni, doorbell, wake.clone())?);
        // Events may come as soon as the NIC knows the process.
        drop(self.device.wakes.set(vni, Some(wake)));
        self.engine.with(|place| *place = Some(engine.clone()));
        let request = Request::new(Opcode::NewProcess, vni, &body);
        let (status, _) = self.device.call(&request)?;
        if let Err(Failure::Refused(status)) = Failure::check(status) {
            self.platform().log(
                Level::Warning,
                format_args!("the NIC has no datagrams: {status}"),
            );
            return Err(BindError::NoDevice);
        }
        Ok(engine)
    }
}
