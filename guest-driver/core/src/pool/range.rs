//! The range of shared pools: pages of the kernel, mapped once into the process (S1).

use alloc::vec::Vec;

use qnic_abi::pool::{Pool, Shape};
use qnic_abi::PAGE_SIZE;

use crate::paged::paged;
use crate::platform::{DeviceMemory, NoMemory, Platform};

/// The pages, in their order in the range. All of them are the process's to write.
pub(super) struct Range<P: Platform> {
    shape: Shape,
    pages: Vec<P::Memory>,
    /// Which page has which address, sorted by address.
    places: Vec<(u64, u32)>,
}

impl<P: Platform> Range<P> {
    pub(super) fn new(platform: &P, shape: Shape) -> Result<Self, NoMemory> {
        let pages = platform.new_pages(shape.bytes() / PAGE_SIZE)?;
        let mut places = Vec::new();
        places.try_reserve_exact(pages.len())?;
        places.extend(
            (0..)
                .zip(&pages)
                .map(|(number, page)| (page.address(), number)),
        );
        places.sort_unstable();
        Ok(Range {
            shape,
            pages,
            places,
        })
    }

    /// A page of the range.
    pub(super) fn page(&self, index: usize) -> Option<&P::Memory> {
        self.pages.get(index)
    }

    /// The first `length` bytes of a frame; none if it is not there.
    pub(super) fn frame(&self, pool: Pool, index: usize, length: usize) -> Option<P::Memory> {
        let offset = self.shape.frame(pool, index);
        let page = self.page(offset / PAGE_SIZE)?;
        let legal = index < self.shape.frames(pool) && length <= self.shape.frame_bytes();
        legal.then(|| page.part(offset % PAGE_SIZE, length))
    }

    /// The input frame at an address; none if there is none.
    pub(super) fn input_at(&self, address: u64) -> Option<usize> {
        let start = address - address % PAGE_SIZE as u64;
        let place = self
            .places
            .binary_search_by_key(&start, |(address, _)| *address);
        let (_, page) = *self.places.get(place.ok()?)?;
        let offset = page as usize * PAGE_SIZE + (address - start) as usize;
        let first = self.shape.frame(Pool::Input, 0);
        let stride = self.shape.frame(Pool::Input, 1) - first;
        let index = offset.checked_sub(first)? / stride;
        (index < self.shape.frames(Pool::Input)).then_some(index)
    }

    fn bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// The page of a word of the control words and queues, and the offset there. Offsets come
    /// from the shape.
    fn at(&self, offset: usize) -> (&P::Memory, usize) {
        (&self.pages[offset / PAGE_SIZE], offset % PAGE_SIZE)
    }
}

paged!([P: Platform] Range<P>);
