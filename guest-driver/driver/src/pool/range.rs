//! The range of shared pools: memory of the kernel, mapped once into the process (S1).
//!
//! ```text
//!   words and queues: single pages │ frames: pages, or blocks of pages if a frame is longer
//!                                  first frame
//! ```

use alloc::vec::Vec;

use qnic_abi::pool::{Pool, Shape};
use qnic_abi::PAGE_SIZE;

use crate::paged::paged;
use crate::platform::{DeviceMemory, NoMemory, Platform, Run};

/// The memory. The process may write all of it at any time.
pub(super) struct Range<P: Platform> {
    shape: Shape,
    /// The pages before the first frame, one by one; then the blocks of frames, in their order.
    blocks: Vec<P::Memory>,
    /// Pages before the first frame.
    words: usize,
    /// Bytes of a block of frames.
    block_bytes: usize,
    /// Addresses of the blocks of input frames, sorted, with the number of each block.
    places: Vec<(u64, u32)>,
}

impl<P: Platform> Range<P> {
    pub(super) fn new(platform: &P, shape: Shape) -> Result<Self, NoMemory> {
        let block_bytes = shape.block_pages() * PAGE_SIZE;
        let words = shape.first_frame() / PAGE_SIZE;
        let blocks = platform.new_blocks(&[
            Run {
                blocks: words,
                pages: 1,
            },
            Run {
                blocks: (shape.bytes() - shape.first_frame()) / block_bytes,
                pages: shape.block_pages(),
            },
        ])?;
        let inputs = (shape.frame(Pool::Output, 0) - shape.first_frame()) / block_bytes;
        let inputs = blocks.iter().skip(words).take(inputs);
        let mut places = Vec::new();
        places.try_reserve_exact(inputs.len())?;
        places.extend(
            (0..)
                .zip(inputs)
                .map(|(number, block)| (block.address(), number)),
        );
        places.sort_unstable();
        Ok(Range {
            shape,
            blocks,
            words,
            block_bytes,
            places,
        })
    }

    /// A page of the range.
    pub(super) fn page(&self, index: usize) -> Option<P::Memory> {
        let offset = index.checked_mul(PAGE_SIZE)?;
        let (block, within) = self.place(offset);
        let block = self.blocks.get(block)?;
        Some(block.part(within, PAGE_SIZE))
    }

    /// The first `length` bytes of a frame; `None` if there is no such frame.
    pub(super) fn frame(&self, pool: Pool, index: usize, length: usize) -> Option<P::Memory> {
        let legal = index < self.shape.frames(pool) && length <= self.shape.frame_bytes();
        let (block, within) = self.place(self.shape.frame(pool, index));
        let block = self.blocks.get(block).filter(|_| legal)?;
        Some(block.part(within, length))
    }

    /// The input frame at an address, if there is one.
    pub(super) fn input_at(&self, address: u64) -> Option<usize> {
        let behind = self.places.partition_point(|(start, _)| *start <= address);
        let (start, block) = *self.places.get(behind.checked_sub(1)?)?;
        let within = usize::try_from(address - start).ok()?;
        if within >= self.block_bytes {
            return None;
        }
        let index = (block as usize * self.block_bytes + within) / self.shape.stride();
        (index < self.shape.frames(Pool::Input)).then_some(index)
    }

    fn bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// The block of an offset, and the offset there.
    fn place(&self, offset: usize) -> (usize, usize) {
        match offset.checked_sub(self.words * PAGE_SIZE) {
            None => (offset / PAGE_SIZE, offset % PAGE_SIZE),
            Some(offset) => (
                self.words + offset / self.block_bytes,
                offset % self.block_bytes,
            ),
        }
    }

    /// The memory of a word, and the offset there. Offsets come from the shape.
    fn at(&self, offset: usize) -> (&P::Memory, usize) {
        let (block, within) = self.place(offset);
        (&self.blocks[block], within)
    }
}

paged!([P: Platform] Range<P>);
