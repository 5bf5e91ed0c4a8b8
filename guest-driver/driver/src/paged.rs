//! Words that lie in several pages, one behind the other.

/// Implements [`qnic_abi::SharedMemory`] for a type with a method `at`, which gives the page of an
/// offset and the offset there, and a method `bytes`, its size.
macro_rules! paged {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> qnic_abi::SharedMemory for $type {
            fn size(&self) -> usize {
                self.bytes()
            }

            fn load_u32(&self, offset: usize, order: core::sync::atomic::Ordering) -> u32 {
                let (page, offset) = self.at(offset);
                page.load_u32(offset, order)
            }

            fn store_u32(&self, offset: usize, value: u32, order: core::sync::atomic::Ordering) {
                let (page, offset) = self.at(offset);
                page.store_u32(offset, value, order);
            }

            fn load_u64(&self, offset: usize, order: core::sync::atomic::Ordering) -> u64 {
                let (page, offset) = self.at(offset);
                page.load_u64(offset, order)
            }

            fn store_u64(&self, offset: usize, value: u64, order: core::sync::atomic::Ordering) {
                let (page, offset) = self.at(offset);
                page.store_u64(offset, value, order);
            }

            fn fence(&self) {
                self.at(0).0.fence();
            }
        }
    };
}

pub(crate) use paged;
