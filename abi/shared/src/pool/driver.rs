//! The driver's side of shared pools. Whatever the process writes harms only the process.

use qnic_abi::pool::{events, Pool, Queue, Shape, BUSY, NEED_FRAMES, WANT_WAKE};
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;

use crate::pool::frame::{Frame, Input, InputFrame, Occupied, Output, OutputFrame, Packet, Taken};
use crate::pool::share::Share;

/// The driver's side.
///
/// Every method takes the range, and touches only the part in front of
/// [`Shape::first_frame`].
#[derive(Debug)]
pub struct DriverSide {
    shape: Shape,
    input: Share<Input>,
    output: Share<Output>,
}

impl DriverSide {
    /// Begins, on a range that is zero: the process gets all output frames, and the driver all
    /// input frames ([`DriverSide::all_inputs`]).
    pub fn new<M: SharedMemory>(shape: Shape, memory: &M) -> Self {
        use Queue::{InputEmpty, InputFull, OutputEmpty, OutputFull};
        let mut side = DriverSide {
            shape,
            input: Share::new(shape, Pool::Input, InputEmpty, InputFull, true),
            output: Share::new(shape, Pool::Output, OutputFull, OutputEmpty, true),
        };
        for index in 0..shape.frames(Pool::Output) {
            // The slot is free: the range is zero.
            let _ = side.output_done(memory, Frame::new(index as u16));
        }
        side
    }

    /// The shape of the pools.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// All input frames. To be called once, right after [`DriverSide::new`]: later the process
    /// owns some of them.
    pub fn all_inputs(&self) -> impl Iterator<Item = InputFrame> {
        (0..self.shape.frames(Pool::Input)).map(|index| Frame::new(index as u16))
    }

    /// The next frame that the process wants to send, if there is one.
    pub fn next_output<M: SharedMemory>(&mut self, memory: &M) -> Taken<Packet<Output>> {
        self.output.take(memory)
    }

    /// Gives the process a frame back that the NIC does not read any more.
    ///
    /// # Errors
    /// [`Occupied`]: only if the process breaks the rules.
    pub fn output_done<M: SharedMemory>(
        &mut self,
        memory: &M,
        frame: OutputFrame,
    ) -> Result<(), Occupied<OutputFrame>> {
        self.output.put_empty(memory, frame)
    }

    /// Gives the process a packet, which is at most as long as a frame.
    ///
    /// # Errors
    /// [`Occupied`]: only if the process breaks the rules.
    pub fn deliver<M: SharedMemory>(
        &mut self,
        memory: &M,
        packet: Packet<Input>,
    ) -> Result<(), Occupied<Packet<Input>>> {
        self.input.put(memory, packet)
    }

    /// The next frame that the process gives back, if there is one.
    pub fn next_input<M: SharedMemory>(&mut self, memory: &M) -> Taken<InputFrame> {
        let taken = self.input.take(memory)?;
        Some(taken.map(|packet| packet.frame))
    }

    /// Announces that the driver works: the process need not kick. The driver must call
    /// [`DriverSide::rest`] later.
    pub fn work<M: SharedMemory>(&self, memory: &M) {
        memory.store_u32(BUSY, 1, Ordering::Relaxed);
    }

    /// Rests until a kick or an event of the NIC. Returns false if there is work:
    /// then the driver is still busy. `need_frames`: the NIC is short of input frames, so frames that the
    /// process gives back count as work, and the process kicks for them.
    #[must_use]
    pub fn rest<M: SharedMemory>(&self, memory: &M, need_frames: bool) -> bool {
        memory.store_u32(NEED_FRAMES, need_frames.into(), Ordering::Relaxed);
        memory.store_u32(BUSY, 0, Ordering::Relaxed);
        // Partner: the fence in `ProcessSide::must_kick`. Either this side sees the slot, or the
        // process sees the zero.
        memory.fence();
        if self.output.has_come(memory) || (need_frames && self.input.has_come(memory)) {
            self.work(memory);
            return false;
        }
        true
    }

    /// To be called after slots were filled, with their [`events`]. Returns true if the
    /// process wants to be woken for one of them.
    #[must_use]
    pub fn must_wake<M: SharedMemory>(&self, memory: &M, filled: u32) -> bool {
        // Partner: the fence in `ProcessSide::want`. Either the process sees the slot, or this
        // side sees the request.
        memory.fence();
        memory.load_u32(WANT_WAKE, Ordering::Relaxed) & filled != 0
    }

    /// The [`events`] that are there for the process: the condition of its waits and polls.
    pub fn ready<M: SharedMemory>(&self, memory: &M) -> u32 {
        let mut ready = 0;
        if self.input.has_unread(memory) {
            ready |= events::INPUT;
        }
        if self.output.has_unread(memory) {
            ready |= events::OUTPUT;
        }
        ready
    }
}
