//! What the datagram layer counts, each with its name.

use qnic_abi::uapi::DatagramCounters;

use crate::device::Counter;

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// Counters since the first port was bound; what they mean is in
        /// [`qnic_abi::uapi::DatagramCounters`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            /// Their values.
            pub(crate) fn read(&self) -> DatagramCounters {
                DatagramCounters { $($name: self.$name.get().into(),)* }
            }
        }
    };
}

counters! {
    messages_sent,
    messages_failed,
    messages_refused,
    messages_received,
    packets_sent,
    packets_received,
    routes_narrowed,
    buffers_posted,
    posts_refused,
    pages_steered,
    pages_withdrawn,
    pages_copied,
    bytes_copied,
    fragments_duplicate,
    fragments_malformed,
    fragments_expired,
    fragments_evicted,
    packets_malformed,
    completions_unknown,
    batches,
    batches_full,
}
