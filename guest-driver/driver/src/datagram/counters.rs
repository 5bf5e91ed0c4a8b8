//! The counters of the datagram layer: the table of [`qnic_abi::counters::CounterSource::Datagrams`].

use crate::device::Counter;

qnic_abi::counters! {
    /// Counters since the first port was bound. The NIC itself counts what it drops.
    #[derive(Debug, Default)]
    pub(crate) struct Counters: Counter {
        Counter _ "Messages that the NIC has sent to all their destinations." = messages_sent;
        Counter _ "Messages that could not be sent to a destination." = messages_failed;
        Counter _ "Messages that were not taken: no slot was free, or a destination was wrong." =
            messages_refused;
        Counter _ "Messages that were given to an upper module." = messages_received;
        Counter _ "Packets given to the NIC." = packets_sent;
        Counter _ "Packets that came in a receive buffer." = packets_received;
        Counter _ "Packets that were refused as too long for their route, and are sent in smaller ones." =
            routes_narrowed;
        Counter _ "Commands that post or withdraw receive buffers." = buffers_posted;
        Counter _ "Receive buffers that the NIC has refused." = posts_refused;
        Counter _ "Pages of messages that came in the steered buffer that waited for them." =
            pages_steered;
        Counter _ "Steered buffers that were given back without a message." = pages_withdrawn;
        Counter _ "Pages of messages into which fragments were copied." = pages_copied;
        Counter _ "Bytes that were copied for that." = bytes_copied;
        Counter _ "Fragments dropped: they had come before." = fragments_duplicate;
        Counter _ "Fragments dropped: they belong to no message that can be." = fragments_malformed;
        Counter _ "Fragments dropped: the others did not come in time (H4)." = fragments_expired;
        Counter _ "Fragments dropped: newer messages needed their room." = fragments_evicted;
        Counter _ "Packets dropped: no header of this version, or longer than the first buffer." =
            packets_malformed;
        Counter _ "Completions of nothing that the driver has." = completions_unknown;
        Counter _ "Turns of the service (H5)." = batches;
        Counter _ "Of these, how many left work for the next one." = batches_full;
    }
}
