//! A network of drivers with pools in one process: the driver's side of the queues is the real
//! one, the wire may lose frames.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use qnic_abi::pool::{
    events, OpenPools, Pool, PoolInfo, PoolKick, PoolWait, Shape, FIRST_POOL_PORT,
};
use qnic_abi::{uapi, NodeId, Status};
use qnic_shared::pool::{DriverSide, InputFrame, Output, Packet};
use qnic_shared::region::SharedRegion;
use rustix::event::{eventfd, EventfdFlags};

use crate::provider::{CallError, Memory, Pools, Provider, Registration};
use crate::Nic;

/// The driver's side of some pools.
struct Driver {
    side: DriverSide,
    range: SharedRegion,
    posted: Vec<InputFrame>,
    event: Arc<OwnedFd>,
    info: PoolInfo,
}

#[derive(Default)]
struct State {
    drivers: BTreeMap<(u16, u16), Driver>,
    /// One of so many frames is lost; 0: none is.
    lose_one_of: u64,
    frames: u64,
    /// Frames move only while processes look, one at a time.
    by_looks: bool,
    /// Threads that wait look at the queues themselves, for as long as it takes.
    patient: bool,
    kicked: bool,
    is_over: bool,
}

/// All drivers, and the thread that is their NICs.
#[derive(Default)]
pub(crate) struct Network {
    state: Mutex<State>,
    kicked: Condvar,
    filled: Condvar,
}

impl Network {
    /// A network that loses one of so many frames, 0 for none, and the NIC of each of its nodes.
    pub(crate) fn nics<const N: usize>(lose_one_of: u64) -> [Nic; N] {
        let network = Network::default();
        network.state.lock().unwrap().lose_one_of = lose_one_of;
        Self::served(network)
    }

    /// One without a thread: each look of a process that waits moves one frame. Processes look until
    /// they have what they wait for.
    pub(crate) fn nics_that_look<const N: usize>() -> [Nic; N] {
        let network = Network::default();
        network.state.lock().unwrap().by_looks = true;
        Self::nodes(Arc::new(network))
    }

    /// One on which threads that wait look at the queues until they have what they wait for.
    pub(crate) fn nics_of_the_patient<const N: usize>() -> [Nic; N] {
        let network = Network::default();
        network.state.lock().unwrap().patient = true;
        Self::served(network)
    }

    fn served<const N: usize>(network: Self) -> [Nic; N] {
        let network = Arc::new(network);
        let served = network.clone();
        std::thread::spawn(move || served.serve());
        Self::nodes(network)
    }

    fn nodes<const N: usize>(network: Arc<Self>) -> [Nic; N] {
        let owner = Arc::new(Owner(network));
        std::array::from_fn(|node| {
            let network = owner.clone();
            let node = node as u16;
            Nic::with_provider(Arc::new(Node { network, node }), "fake")
        })
    }

    /// Moves frames while processes hand some over, and rests in between.
    fn serve(&self) {
        let mut state = self.state.lock().unwrap();
        loop {
            let keys: Vec<_> = state.drivers.keys().copied().collect();
            let mut has_rested = true;
            for key in keys {
                has_rested &= state.serve(key, self);
            }
            if !has_rested {
                // Processes get the lock in between.
                drop(state);
                std::thread::yield_now();
                state = self.state.lock().unwrap();
                continue;
            }
            while !state.kicked && !state.is_over {
                state = self.kicked.wait(state).unwrap();
            }
            state.kicked = false;
            if state.is_over {
                return;
            }
        }
    }
}

impl State {
    /// Moves the first frame that there is.
    fn look(&mut self, network: &Network) {
        let keys: Vec<_> = self.drivers.keys().copied().collect();
        let before = self.frames;
        for key in keys {
            self.serve(key, network);
            if self.frames != before {
                return;
            }
        }
    }

    /// Sends what one process wants to be sent. Returns true if its driver rests.
    fn serve(&mut self, key: (u16, u16), network: &Network) -> bool {
        let most = if self.by_looks { 1 } else { usize::MAX };
        let mut sent = Vec::new();
        let Some(driver) = self.drivers.get_mut(&key) else {
            return true;
        };
        driver.side.work(&driver.range);
        while sent.len() < most {
            let Some(packet) = driver.side.next_output(&driver.range) else {
                break;
            };
            let packet = packet.unwrap();
            let start = driver
                .side
                .shape()
                .frame(Pool::Output, packet.frame.index());
            let mut bytes = vec![0; packet.length];
            driver.range.read_bytes(start, &mut bytes);
            sent.push((packet, bytes));
        }
        for (packet, bytes) in sent {
            self.frames += 1;
            if self.lose_one_of == 0 || self.frames % self.lose_one_of != 0 {
                self.deliver(&packet, &bytes, key);
            }
            let driver = self.drivers.get_mut(&key).unwrap();
            driver
                .side
                .output_done(&driver.range, packet.frame)
                .unwrap();
            driver.info.frames_sent += 1;
            driver.wake(events::OUTPUT);
        }
        network.filled.notify_all();
        let driver = &self.drivers[&key];
        let needs_frames = driver.posted.len() < driver.side.shape().frames(Pool::Input) / 2;
        driver.side.rest(&driver.range, needs_frames)
    }

    fn deliver(&mut self, packet: &Packet<Output>, bytes: &[u8], (node, port): (u16, u16)) {
        let to = (packet.node.0, packet.port);
        if !self.drivers.contains_key(&to) {
            return self.put(&[], (node, port), to);
        }
        self.put(bytes, to, (node, port));
    }

    /// Puts a packet into the next frame of a process, or drops it.
    fn put(&mut self, bytes: &[u8], to: (u16, u16), (node, port): (u16, u16)) {
        let Some(driver) = self.drivers.get_mut(&to) else {
            return;
        };
        while let Some(frame) = driver.side.next_input(&driver.range) {
            driver.posted.push(frame.unwrap());
        }
        let Some(frame) = driver.posted.pop() else {
            driver.info.starved += 1;
            return;
        };
        let start = driver.side.shape().frame(Pool::Input, frame.index());
        driver.range.write_bytes(start, bytes);
        let packet = Packet {
            frame,
            length: bytes.len(),
            node: NodeId(node),
            port,
        };
        driver.side.deliver(&driver.range, packet).unwrap();
        driver.info.frames_received += 1;
        driver.wake(events::INPUT);
    }
}

impl Driver {
    fn wake(&mut self, filled: u32) {
        if self.side.must_wake(&self.range, filled) {
            self.info.wakes += 1;
            rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

/// Ends the network with the last NIC and the last pools.
struct Owner(Arc<Network>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().is_over = true;
        self.0.kicked.notify_all();
    }
}

struct Node {
    network: Arc<Owner>,
    node: u16,
}

struct Open {
    network: Arc<Owner>,
    key: (u16, u16),
    range: SharedRegion,
    event: Arc<OwnedFd>,
}

macro_rules! debug_by_name {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

debug_by_name!(Node, Open);

impl Provider for Node {
    fn register(&self, _: u16, _: u32) -> Result<Registration, CallError> {
        Err(CallError::System(std::io::ErrorKind::Unsupported.into()))
    }

    fn allocate(&self, _: usize) -> Result<Arc<dyn Memory>, CallError> {
        Err(CallError::System(std::io::ErrorKind::Unsupported.into()))
    }

    fn counters(&self, _: &mut uapi::Counters) -> Result<(), CallError> {
        Ok(())
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        Ok(uapi::Info::default())
    }

    fn spin_budget(&self, _: usize) -> Duration {
        let state = self.network.0.state.lock().unwrap();
        match state.by_looks || state.patient {
            true => Duration::from_secs(3600),
            false => Duration::from_micros(200),
        }
    }

    fn open_pools(&self, call: &mut OpenPools) -> Result<Option<Box<dyn Pools>>, CallError> {
        let (inputs, outputs) = (call.inputs.get().into(), call.outputs.get().into());
        let Some(shape) = Shape::new(call.frame_bytes.get() as usize, inputs, outputs) else {
            call.status = Status::BadLength.code().into();
            return Ok(None);
        };
        let mut state = self.network.0.state.lock().unwrap();
        let wanted = call.port.get();
        let is_free = |port: &u16| !state.drivers.contains_key(&(self.node, *port));
        let port = match wanted {
            0 => (FIRST_POOL_PORT..).find(is_free).unwrap(),
            port => port,
        };
        if !is_free(&port) {
            call.status = Status::PortInUse.code().into();
            return Ok(None);
        }
        call.port = port.into();
        call.node = self.node.into();
        call.bytes = (shape.bytes() as u64).into();
        let range = SharedRegion::anonymous(shape.bytes())?;
        let side = DriverSide::new(shape, &range);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = Arc::new(eventfd(0, flags).map_err(std::io::Error::from)?);
        let driver = Driver {
            posted: side.all_inputs().collect(),
            side,
            range: range.clone(),
            event: event.clone(),
            info: PoolInfo::default(),
        };
        state.drivers.insert((self.node, port), driver);
        Ok(Some(Box::new(Open {
            network: self.network.clone(),
            key: (self.node, port),
            range,
            event,
        })))
    }
}

impl Pools for Open {
    fn range(&self) -> &dyn Memory {
        &self.range
    }

    fn kick(&self, _: &mut PoolKick) -> Result<(), CallError> {
        let mut state = self.network.0.state.lock().unwrap();
        state.kicked = true;
        state.drivers.get_mut(&self.key).unwrap().info.kicks += 1;
        self.network.0.kicked.notify_all();
        Ok(())
    }

    fn wait(&self, call: &mut PoolWait) -> Result<(), CallError> {
        let timeout = match call.timeout_ns.get() {
            negative if negative < 0 => Duration::from_secs(3600),
            nanoseconds => Duration::from_nanos(nanoseconds as u64),
        };
        let mut state = self.network.0.state.lock().unwrap();
        state.drivers.get_mut(&self.key).unwrap().info.waits += 1;
        if state.by_looks && timeout.is_zero() {
            state.look(&self.network.0);
        }
        let wanted = call.events.get();
        let nothing = |state: &mut State| {
            let driver = &state.drivers[&self.key];
            driver.side.ready(&driver.range) & wanted == 0
        };
        let filled = &self.network.0.filled;
        let (_state, waited) = filled.wait_timeout_while(state, timeout, nothing).unwrap();
        match waited.timed_out() {
            true => Err(CallError::TimedOut),
            false => Ok(()),
        }
    }

    fn info(&self, call: &mut PoolInfo) -> Result<(), CallError> {
        *call = self.network.0.state.lock().unwrap().drivers[&self.key].info;
        Ok(())
    }

    fn path(&self, call: &mut uapi::Path) -> Result<(), CallError> {
        call.path.max_payload = 3000.into();
        Ok(())
    }

    fn looks(&self) -> bool {
        self.network.0.state.lock().unwrap().by_looks
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Ok(self.event.as_fd())
    }

    fn clear_event(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.network
            .0
            .state
            .lock()
            .unwrap()
            .drivers
            .remove(&self.key);
    }
}
