//! The process's side of shared pools.

use qnic_abi::pool::{events, Pool, Queue, Shape, BUSY, NEED_FRAMES, WANT_WAKE};
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;

use crate::pool::frame::{Input, InputFrame, Occupied, Output, OutputFrame, Packet, Taken};
use crate::pool::share::Share;

/// The process's side.
///
/// Every method takes the range, and touches only the part in front of
/// [`Shape::first_frame`].
#[derive(Debug)]
pub struct ProcessSide {
    input: Share<Input>,
    output: Share<Output>,
    /// Slots were filled since the last look at the driver's words.
    sent: bool,
    given_back: bool,
}

impl ProcessSide {
    /// Begins, on a range on which the driver has begun.
    pub fn new(shape: Shape) -> Self {
        use Queue::{InputEmpty, InputFull, OutputEmpty, OutputFull};
        ProcessSide {
            input: Share::new(shape, Pool::Input, InputFull, InputEmpty, false),
            output: Share::new(shape, Pool::Output, OutputEmpty, OutputFull, false),
            sent: false,
            given_back: false,
        }
    }

    /// A frame that can be filled, if there is one.
    pub fn take_output<M: SharedMemory>(&mut self, memory: &M) -> Taken<OutputFrame> {
        let taken = self.output.take(memory)?;
        Some(taken.map(|packet| packet.frame))
    }

    /// Has a packet sent, which is at most as long as a frame. Call
    /// [`ProcessSide::must_kick`] afterwards, at the latest before the process waits.
    ///
    /// # Errors
    /// [`Occupied`]: only if the driver breaks the rules.
    pub fn send<M: SharedMemory>(
        &mut self,
        memory: &M,
        packet: Packet<Output>,
    ) -> Result<(), Occupied<Packet<Output>>> {
        self.output.put(memory, packet)?;
        self.sent = true;
        Ok(())
    }

    /// The next packet that has come, if there is one.
    pub fn receive<M: SharedMemory>(&mut self, memory: &M) -> Taken<Packet<Input>> {
        self.input.take(memory)
    }

    /// Gives back a frame that was read. Call [`ProcessSide::must_kick`] afterwards, at the latest before
    /// the process waits.
    ///
    /// # Errors
    /// [`Occupied`]: only if the driver breaks the rules.
    pub fn give_back<M: SharedMemory>(
        &mut self,
        memory: &M,
        frame: InputFrame,
    ) -> Result<(), Occupied<InputFrame>> {
        self.input.put_empty(memory, frame)?;
        self.given_back = true;
        Ok(())
    }

    /// Returns true if the driver has to be kicked for frames that were sent or given back since the last
    /// call (S4).
    #[must_use]
    pub fn must_kick<M: SharedMemory>(&mut self, memory: &M) -> bool {
        if !self.sent && !self.given_back {
            return false;
        }
        let (sent, given_back) = (self.sent, self.given_back);
        self.sent = false;
        self.given_back = false;
        // Partner: the fence in `DriverSide::rest`. Either this side sees that the driver rests,
        // or the driver sees the slots.
        memory.fence();
        if memory.load_u32(BUSY, Ordering::Relaxed) != 0 {
            return false;
        }
        sent || (given_back && memory.load_u32(NEED_FRAMES, Ordering::Relaxed) != 0)
    }

    /// Requests a wake-up for some [`events`]; returns those that are there
    /// already: then the process does not block.
    #[must_use]
    pub fn want<M: SharedMemory>(&self, memory: &M, wanted: u32) -> u32 {
        memory.store_u32(WANT_WAKE, wanted, Ordering::Relaxed);
        // Partner: the fence in `DriverSide::must_wake`. Either this side sees the slot, or the
        // driver sees the request.
        memory.fence();
        self.ready(memory) & wanted
    }

    /// Announces that the process is awake.
    pub fn awake<M: SharedMemory>(&self, memory: &M) {
        memory.store_u32(WANT_WAKE, 0, Ordering::Relaxed);
    }

    /// The [`events`] that are there.
    pub fn ready<M: SharedMemory>(&self, memory: &M) -> u32 {
        let mut ready = 0;
        if self.input.has_come(memory) {
            ready |= events::INPUT;
        }
        if self.output.has_come(memory) {
            ready |= events::OUTPUT;
        }
        ready
    }
}
