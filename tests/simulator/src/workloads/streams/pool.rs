//! Shared pools as the process of a stream worker has them: its side of the queues on the driver
//! core's, and the frames that it owns.

use std::sync::{Arc, Mutex};

use qnic::stream_protocol::{ReceivedFrame, SendFrame};
use qnic_abi::pool::{events, OpenPools, Pool, PoolKick, PoolWait, Shape};
use qnic_abi::stream::HEADER_BYTES;
use qnic_abi::{uapi, NodeId};
use qnic_driver::platform::DeviceMemory;
use qnic_driver::{CallError, Pools};
use qnic_shared::pool::{Packet, ProcessSide};

use crate::machine::device_memory::SimMemory;
use crate::machine::platform::SimPlatform;
use crate::schedule::lock;

/// Where an output frame is.
enum Place {
    /// Without a [`Sending`]: it is free, or on its way.
    Away,
    /// With its [`Sending`].
    Here(qnic_shared::pool::OutputFrame),
    /// With the driver; its [`Sending`] waits for it.
    Lent,
}

struct State {
    side: ProcessSide,
    free: Vec<qnic_shared::pool::OutputFrame>,
    places: Vec<Place>,
    /// Input frames that the process has.
    inputs: usize,
}

/// The pools of a process.
pub(super) struct ProcessPools {
    pools: Pools<SimPlatform>,
    range: SimMemory,
    shape: Shape,
    state: Mutex<State>,
}

/// The rules that both sides keep to.
const RULES: &str = "the driver breaks the rules of the queues";

impl ProcessPools {
    /// Maps pools that were opened.
    pub(super) fn new(pools: Pools<SimPlatform>, call: &OpenPools) -> Arc<Self> {
        let frame_bytes = call.frame_bytes.get() as usize;
        let (inputs, outputs) = (call.inputs.get().into(), call.outputs.get().into());
        let shape = Shape::new(frame_bytes, inputs, outputs).expect("the shape that was opened");
        let pages = (0..).map_while(|index| pools.page(index));
        Arc::new(ProcessPools {
            range: SimMemory::joined(pages.collect()),
            pools,
            shape,
            state: Mutex::new(State {
                side: ProcessSide::new(shape),
                free: Vec::new(),
                places: (0..outputs).map(|_| Place::Away).collect(),
                inputs: 0,
            }),
        })
    }

    /// Takes back all frames that were sent.
    fn reap(&self, state: &mut State) {
        while let Some(frame) = state.side.take_output(&self.range) {
            let frame = frame.expect(RULES);
            let place = &mut state.places[frame.index()];
            match place {
                Place::Lent => *place = Place::Here(frame),
                Place::Away | Place::Here(_) => state.free.push(frame),
            }
        }
    }

    /// A frame that can be filled; none if all are on their way.
    pub(super) fn output(self: &Arc<Self>) -> Option<Sending> {
        let mut state = lock(&self.state);
        self.reap(&mut state);
        let frame = state.free.pop()?;
        let index = frame.index();
        state.places[index] = Place::Here(frame);
        Some(Sending {
            pools: self.clone(),
            index,
        })
    }

    /// The packet that came first.
    pub(super) fn receive(self: &Arc<Self>) -> Option<Received> {
        let mut state = lock(&self.state);
        let packet = state.side.receive(&self.range)?.expect(RULES);
        state.inputs += 1;
        Some(Received {
            pools: self.clone(),
            node: packet.node,
            port: packet.port,
            length: packet.length,
            start: self.shape.frame(Pool::Input, packet.frame.index()),
            frame: Some(packet.frame),
        })
    }

    /// Tells the driver what was sent and given back, if it has to be told.
    pub(super) fn flush(&self) -> Result<(), CallError> {
        if lock(&self.state).side.must_kick(&self.range) {
            self.pools.kick(&mut PoolKick::default())?;
        }
        Ok(())
    }

    /// Blocks until a packet has come, or a frame has been sent, or for so many nanoseconds.
    pub(super) fn wait(&self, nanoseconds: u64) -> Result<(), CallError> {
        let wanted = events::INPUT | events::OUTPUT;
        let ready = {
            let mut state = lock(&self.state);
            self.reap(&mut state);
            state.side.want(&self.range, wanted)
        };
        if ready == 0 {
            let mut call = PoolWait {
                events: wanted.into(),
                timeout_ns: (nanoseconds as i64).into(),
                ..PoolWait::default()
            };
            match self.pools.wait(&mut call) {
                Ok(()) | Err(CallError::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
        lock(&self.state).side.awake(&self.range);
        Ok(())
    }

    /// Bytes that the route to a node carries in one packet, up to those of a frame; those of a
    /// frame if the route is not known yet.
    pub(super) fn route_bytes(&self, node: NodeId) -> usize {
        let mut call = uapi::Path {
            node: node.0.into(),
            ..uapi::Path::default()
        };
        let frame = self.shape.frame_bytes();
        match self.pools.path(&mut call) {
            Ok(()) if call.status.get() == 0 => frame.min(call.path.max_payload.get() as usize),
            _ => frame,
        }
    }

    /// Returns true if all output frames are free, and the driver has all input frames.
    pub(super) fn is_whole(&self) -> bool {
        let mut state = lock(&self.state);
        self.reap(&mut state);
        state.free.len() == self.shape.frames(Pool::Output) && state.inputs == 0
    }
}

/// An output frame.
pub(super) struct Sending {
    pools: Arc<ProcessPools>,
    index: usize,
}

impl Sending {
    fn write(&self, offset: usize, bytes: &[u8]) {
        let start = self.pools.shape.frame(Pool::Output, self.index) + offset;
        self.pools.range.write_bytes(start, bytes);
    }

    /// Has it sent, with a header in front of so many bytes.
    pub(super) fn send(&mut self, to: (NodeId, u16), header: &[u8], length: usize) {
        assert!(
            !self.is_in_use(),
            "a frame that is on its way is sent again"
        );
        self.write(0, header);
        let mut state = lock(&self.pools.state);
        let place = std::mem::replace(&mut state.places[self.index], Place::Lent);
        let Place::Here(frame) = place else {
            panic!("a frame that is not here is sent");
        };
        let packet = Packet {
            frame,
            length: header.len() + length,
            node: to.0,
            port: to.1,
        };
        let sent = state.side.send(&self.pools.range, packet);
        assert!(sent.is_ok(), "{RULES}");
    }
}

impl SendFrame for Sending {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        assert!(!self.is_in_use(), "a frame that is on its way is changed");
        self.write(HEADER_BYTES + offset, bytes);
    }

    fn is_in_use(&self) -> bool {
        let mut state = lock(&self.pools.state);
        self.pools.reap(&mut state);
        !matches!(state.places[self.index], Place::Here(_))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut state = lock(&self.pools.state);
        let place = std::mem::replace(&mut state.places[self.index], Place::Away);
        if let Place::Here(frame) = place {
            state.free.push(frame);
        }
    }
}

/// An input frame with a packet.
pub(super) struct Received {
    pools: Arc<ProcessPools>,
    pub(super) node: NodeId,
    pub(super) port: u16,
    length: usize,
    start: usize,
    /// None only within `drop`.
    frame: Option<qnic_shared::pool::InputFrame>,
}

impl ReceivedFrame for Received {
    fn length(&self) -> usize {
        self.length
    }

    fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.pools.range.read_bytes(self.start + offset, bytes);
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let mut state = lock(&self.pools.state);
        if let Some(frame) = self.frame.take() {
            let given = state.side.give_back(&self.pools.range, frame);
            assert!(given.is_ok(), "{RULES}");
            state.inputs -= 1;
        }
    }
}
