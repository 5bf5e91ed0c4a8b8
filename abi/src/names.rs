//! Names of the kinds of frames, for people: traces, captures, messages.

use crate::wire::kind;
use crate::{
    atomic, collective, datagram, directory, ethernet, message, multicast, process_names, rdma,
    verbs,
};

/// Every kind of frame, with its name.
pub const KINDS: [(u8, &str); 47] = [
    (kind::ACK, "Ack"),
    (kind::HELLO, "Hello"),
    (kind::HELLO_REPLY, "HelloReply"),
    (kind::GOODBYE, "Goodbye"),
    (kind::LEAVE, "Leave"),
    (kind::NAK, "Nak"),
    (kind::PROCESS_GONE, "ProcessGone"),
    (kind::WINDOW, "Window"),
    (kind::WINDOW_TAKEN, "WindowTaken"),
    (rdma::kind::WRITE, "Write"),
    (rdma::kind::READ_REQUEST, "ReadRequest"),
    (rdma::kind::READ_RESPONSE, "ReadResponse"),
    (atomic::kind::ATOMIC_REQUEST, "AtomicRequest"),
    (atomic::kind::ATOMIC_RESPONSE, "AtomicResponse"),
    (directory::kind::IMPORT_REQUEST, "ImportRequest"),
    (directory::kind::IMPORT_RESPONSE, "ImportResponse"),
    (message::kind::MESSAGE, "Message"),
    (message::kind::MESSAGE_DATA, "MessageData"),
    (message::kind::MESSAGE_REQUEST, "MessageRequest"),
    (message::kind::MESSAGE_PERMIT, "MessagePermit"),
    (message::kind::MESSAGE_END, "MessageEnd"),
    (message::kind::MESSAGE_SEEK, "MessageSeek"),
    (message::kind::MESSAGE_GONE, "MessageGone"),
    (collective::kind::COLLECTIVE_UP, "CollectiveUp"),
    (collective::kind::COLLECTIVE_DOWN, "CollectiveDown"),
    (collective::kind::GROUP_FORM, "GroupForm"),
    (collective::kind::GROUP_END, "GroupEnd"),
    (collective::kind::GROUP_SEEK, "GroupSeek"),
    (collective::kind::GROUP_JOIN, "GroupJoin"),
    (collective::kind::GROUP_REFUSED, "GroupRefused"),
    (collective::kind::GROUP_FORMED, "GroupFormed"),
    (collective::kind::GROUP_START, "GroupStart"),
    (collective::kind::GROUP_GREET, "GroupGreet"),
    (multicast::kind::MULTICAST, "Multicast"),
    (multicast::kind::MULTICAST_TAKEN, "MulticastTaken"),
    (datagram::kind::DATAGRAM, "Datagram"),
    (ethernet::kind::ETHERNET, "Ethernet"),
    (process_names::kind::NAMES, "Names"),
    (process_names::kind::NAMES_SEEN, "NamesSeen"),
    (verbs::frames::kind::VERBS_MESSAGE, "VerbsMessage"),
    (verbs::frames::kind::VERBS_READ_DATA, "VerbsReadData"),
    (verbs::frames::kind::VERBS_READ, "VerbsRead"),
    (verbs::frames::kind::VERBS_ATOMIC, "VerbsAtomic"),
    (verbs::frames::kind::VERBS_REPLY, "VerbsReply"),
    (verbs::frames::kind::VERBS_PROBE, "VerbsProbe"),
    (verbs::frames::kind::VERBS_DATAGRAM, "VerbsDatagram"),
    (verbs::frames::kind::VERBS_UNRELIABLE, "VerbsUnreliable"),
];

/// The name of a kind of frame, if it is known.
pub fn kind_name(kind: u8) -> Option<&'static str> {
    let mut kinds = KINDS.iter();
    kinds.find(|entry| entry.0 == kind).map(|entry| entry.1)
}
