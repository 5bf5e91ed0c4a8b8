-- qnic.lua: shows captures of qnic in Wireshark and tshark (docs/wire.md).
--
--   tshark -2 -X lua_script:qnic.lua -r capture.pcapng -V
--
-- Link type USER0: a pseudo header of 8 bytes (what the link did to the frame), the
-- envelope of 64 bytes (abi/src/wire.rs), the body by kind, the payload.
-- Everything is little-endian. Beside the fields, frames are related to each other:
--
--   qnic.retransmission_of   the same number of the same session went by this link before
--   qnic.acknowledged_in     first frame of the other side that acknowledges this one
--   qnic.acknowledges        last frame that this one is the first to acknowledge
--   qnic.response_to, .response_in   request and response, by the number of the operation

local PSEUDO = 8
local ENVELOPE = 64
local PSEUDO_VERSION = 1
local MAGIC = 0x6e71
local VERSION = 22

local KINDS = {
    [1] = "Ack", [2] = "Hello", [3] = "HelloReply", [4] = "Goodbye", [5] = "Leave",
    [128] = "Nak", [130] = "Window", [131] = "WindowTaken",
    [129] = "ProcessGone", [64] = "Write", [144] = "ReadRequest", [65] = "ReadResponse",
    [160] = "AtomicRequest", [161] = "AtomicResponse", [176] = "ImportRequest",
    [177] = "ImportResponse", [72] = "Message", [73] = "MessageData",
    [152] = "MessageRequest", [153] = "MessagePermit", [154] = "MessageEnd", [155] = "MessageSeek", [156] = "MessageGone",
    [80] = "CollectiveUp", [81] = "CollectiveDown", [82] = "GroupForm", [83] = "GroupEnd",
    [84] = "GroupSeek", [85] = "Multicast", [86] = "MulticastTaken",
    [168] = "GroupJoin", [169] = "GroupRefused", [170] = "GroupFormed", [171] = "GroupStart",
    [172] = "GroupGreet", [88] = "Names", [184] = "NamesSeen",
    [192] = "Datagram", [193] = "Ethernet",
    [96] = "VerbsMessage", [97] = "VerbsReadData", [136] = "VerbsRead", [137] = "VerbsAtomic",
    [138] = "VerbsReply", [139] = "VerbsProbe", [200] = "VerbsDatagram", [201] = "VerbsUnreliable",
}
local ACK, HELLO, HELLO_REPLY, LEAVE, NAK = 1, 2, 3, 5, 128
local WINDOW, WINDOW_TAKEN = 130, 131
local WRITE, READ_REQUEST, READ_RESPONSE = 64, 144, 65
local ATOMIC_REQUEST, ATOMIC_RESPONSE, IMPORT_REQUEST, IMPORT_RESPONSE = 160, 161, 176, 177
local MESSAGE, MESSAGE_DATA, MESSAGE_REQUEST, MESSAGE_PERMIT, MESSAGE_END = 72, 73, 152, 153, 154
local MESSAGE_SEEK, MESSAGE_GONE = 155, 156
local COLLECTIVE_UP, COLLECTIVE_DOWN, GROUP_FORM, GROUP_END, GROUP_SEEK = 80, 81, 82, 83, 84
local MULTICAST, MULTICAST_TAKEN = 85, 86
local NAMES = 88
local DATAGRAM, ETHERNET = 192, 193
local VERBS_MESSAGE, VERBS_READ_DATA, VERBS_READ, VERBS_ATOMIC = 96, 97, 136, 137
local VERBS_REPLY, VERBS_PROBE, VERBS_DATAGRAM, VERBS_UNRELIABLE = 138, 139, 200, 201
local GROUP_JOIN, GROUP_REFUSED, GROUP_FORMED, GROUP_START, GROUP_GREET = 168, 169, 170, 171, 172
local ethernet = Dissector.get("eth_withoutfcs")
-- The kind of the response to a request that carries the number of an operation.
local response_of = {
    [READ_REQUEST] = READ_RESPONSE,
    [ATOMIC_REQUEST] = ATOMIC_RESPONSE,
    [IMPORT_REQUEST] = IMPORT_RESPONSE,
    [MESSAGE_REQUEST] = MESSAGE_PERMIT,
}

local STATUSES = {
    [0] = "Ok", [1] = "Malformed", [2] = "BadLength", [3] = "BadAddress", [4] = "BadKey",
    [5] = "AccessDenied", [6] = "NoSuchSegment", [7] = "NoSuchPort", [8] = "NoSuchNode",
    [9] = "NameNotFound", [10] = "NameExists", [11] = "PortInUse", [12] = "Exhausted",
    [13] = "VersionMismatch", [14] = "NoSuchVni", [15] = "VniInUse", [16] = "Aborted",
    [17] = "PeerGone", [18] = "PageUnavailable", [19] = "BadNotification",
    [20] = "QueueFailed", [21] = "SramTooSmall", [22] = "NotMapped",
    [23] = "ReadOnlyMemory", [24] = "UnreadableMemory", [25] = "SecretMemory",
    [26] = "DaxMemory", [27] = "DeviceMemory", [28] = "Overlapping",
    [29] = "Misaligned", [30] = "FaultTimeout", [31] = "ImportRefused",
    [32] = "NotStaged", [33] = "Truncated", [34] = "Cancelled", [35] = "Mismatch",
    [36] = "TimedOut", [37] = "NoSuchGroup", [38] = "GroupRefused",
    [39] = "NoMessage", [40] = "NameTaken", [41] = "NoSuchVolume",
    [42] = "VolumeInUse", [43] = "NotServing",
    [44] = "Contended", [45] = "OwnPageUnavailable", [46] = "UserFaultMemory",
}

local COLLECTIVES = { [1] = "Barrier", [2] = "Broadcast", [3] = "Reduce", [4] = "Allreduce" }
local OPERATORS = {
    [0] = "none", [1] = "Sum", [2] = "Product", [3] = "Minimum", [4] = "Maximum", [5] = "And",
    [6] = "Or", [7] = "Xor",
}
local ELEMENTS = {
    [0] = "none", [1] = "U32", [2] = "U64", [3] = "I32", [4] = "I64", [5] = "F32", [6] = "F64",
}

local REQUESTS = {
    [0] = "Write", [1] = "WriteImmediate", [2] = "Send", [3] = "SendImmediate", [4] = "Read",
    [5] = "CompareSwap", [6] = "FetchAdd",
}
local REPLIES = {
    [0] = "Done", [1] = "ReceiverNotReady", [2] = "PageAbsent", [3] = "GoOn", [4] = "NoQueuePair",
    [5] = "OutOfSequence", [6] = "InvalidRequest", [7] = "AccessDenied", [8] = "Failed", [9] = "Word",
}

local OUTCOMES = {
    [0] = "passes", [1] = "lost", [2] = "dropped: partition", [3] = "dropped: queue full",
    [4] = "dropped: destination not running", [5] = "dropped in transit: partition",
}
local CUT_IN_TRANSIT = 5

local qnic = Proto("qnic", "qnic system-area network")

local link = {
    version = ProtoField.uint8("qnic.link.version", "Version of the pseudo header"),
    outcome = ProtoField.uint8("qnic.link.outcome", "Outcome", base.DEC, OUTCOMES),
    flags = ProtoField.uint16("qnic.link.flags", "Flags", base.HEX),
    duplicated = ProtoField.bool("qnic.link.duplicated", "Arrives twice", 16, nil, 0x1),
    reordered = ProtoField.bool("qnic.link.reordered", "Reordered", 16, nil, 0x2),
    corrupted = ProtoField.bool("qnic.link.corrupted", "Corrupted", 16, nil, 0x4),
    foreign = ProtoField.bool("qnic.link.foreign", "From another process", 16, nil, 0x8),
    from = ProtoField.uint16("qnic.link.from", "Link from node"),
    to = ProtoField.uint16("qnic.link.to", "Link to node"),
}

-- Name in Envelope, offset, bytes, field; in the order of the envelope.
local envelope = {
    { "magic", 0, 2, ProtoField.uint16("qnic.magic", "Magic", base.HEX) },
    { "version", 2, 1, ProtoField.uint8("qnic.version", "Version") },
    { "kind", 3, 1, ProtoField.uint8("qnic.kind", "Kind", base.DEC, KINDS) },
    { "fragments", 4, 1, ProtoField.uint8("qnic.fragments", "Fragments") },
    { "body_length", 5, 1, ProtoField.uint8("qnic.body_length", "Body length") },
    { "payload_length", 6, 2, ProtoField.uint16("qnic.payload_length", "Payload length") },
    { "source_node", 8, 2, ProtoField.uint16("qnic.source_node", "Source node") },
    { "destination_node", 10, 2, ProtoField.uint16("qnic.destination_node", "Destination node") },
    { "source_port", 12, 2, ProtoField.uint16("qnic.source_port", "Source port") },
    { "destination_port", 14, 2, ProtoField.uint16("qnic.destination_port", "Destination port") },
    { "source_session", 16, 8, ProtoField.uint64("qnic.source_session", "Source session", base.HEX) },
    { "destination_session", 24, 8, ProtoField.uint64("qnic.destination_session", "Destination session", base.HEX) },
    { "sequence", 32, 8, ProtoField.uint64("qnic.sequence", "Sequence number") },
    { "acknowledge", 40, 8, ProtoField.uint64("qnic.acknowledge", "Acknowledge: received up to") },
    { "delivered", 48, 8, ProtoField.uint64("qnic.delivered", "Delivered up to") },
    { "operation", 56, 8, ProtoField.uint64("qnic.operation", "Operation", base.HEX) },
}

-- Fields of bodies. One of a name means the same in every kind.
local field = {
    address = ProtoField.uint64("qnic.address", "Address", base.HEX),
    key = ProtoField.uint64("qnic.key", "Key", base.HEX),
    offset = ProtoField.uint64("qnic.offset", "Offset"),
    remaining = ProtoField.uint64("qnic.remaining", "Bytes to the end of the transfer"),
    length = ProtoField.uint64("qnic.length", "Length"),
    segment = ProtoField.uint16("qnic.segment", "Segment"),
    page_offset = ProtoField.uint16("qnic.page_offset", "Offset in the page"),
    flags = ProtoField.uint32("qnic.flags", "Flags", base.HEX),
    notification = ProtoField.uint32("qnic.notification", "Notification"),
    bitmap = ProtoField.uint64("qnic.bitmap", "Received beyond", base.HEX),
    window = ProtoField.uint32("qnic.window", "Window"),
    leaves = ProtoField.uint32("qnic.leaves", "Number of the Leave"),
    next = ProtoField.uint64("qnic.next", "Next sequence number"),
    status = ProtoField.uint32("qnic.status", "Status", base.DEC, STATUSES),
    refused_kind = ProtoField.uint8("qnic.refused_kind", "Refused kind", base.DEC, KINDS),
    refused = ProtoField.uint64("qnic.refused", "Refused sequence number"),
    operand = ProtoField.uint64("qnic.operand", "Operand", base.HEX),
    ["function"] = ProtoField.uint16("qnic.function", "Function"),
    value = ProtoField.uint64("qnic.value", "Value", base.HEX),
    detail = ProtoField.uint64("qnic.detail", "Detail", base.HEX),
    name = ProtoField.uint64("qnic.name", "Name", base.HEX),
    wait_ms = ProtoField.uint32("qnic.wait_ms", "Wait, in ms"),
    access = ProtoField.uint32("qnic.access", "Access", base.HEX),
    tag = ProtoField.uint64("qnic.tag", "Tag", base.HEX),
    immediate = ProtoField.uint64("qnic.immediate", "Immediate data", base.HEX),
    mark = ProtoField.uint32("qnic.mark", "Mark", base.HEX),
    incarnation = ProtoField.uint32("qnic.incarnation", "Incarnation of the receiver", base.HEX),
    source = ProtoField.uint32("qnic.source", "Incarnation of the sender", base.HEX),
    after = ProtoField.uint64("qnic.after", "Matched after sequence number"),
    endpoint = ProtoField.uint16("qnic.endpoint", "Endpoint"),
    packets = ProtoField.uint32("qnic.packets", "Packets"),
    packet_length = ProtoField.uint32("qnic.packet_length", "Bytes of a packet"),
    receive = ProtoField.uint64("qnic.receive", "Receive", base.HEX),
    group = ProtoField.uint64("qnic.group", "Group", base.HEX),
    home = ProtoField.uint16("qnic.home", "Home node of the group"),
    size = ProtoField.uint32("qnic.size", "Members"),
    rank = ProtoField.uint32("qnic.rank", "Rank"),
    members = ProtoField.uint32("qnic.members", "Members on the node"),
    parent = ProtoField.uint16("qnic.parent", "Node above"),
    ticket = ProtoField.uint64("qnic.ticket", "Join", base.HEX),
    who_node = ProtoField.uint16("qnic.who_node", "Node of the reason"),
    who_port = ProtoField.uint16("qnic.who_port", "Port of the reason"),
    collective = ProtoField.uint8("qnic.collective", "Collective", base.DEC, COLLECTIVES),
    number = ProtoField.uint32("qnic.number", "Number of the collective"),
    part = ProtoField.uint32("qnic.part", "Part"),
    part_bytes = ProtoField.uint32("qnic.part_bytes", "Bytes of a part"),
    root = ProtoField.uint32("qnic.root", "Root"),
    operator = ProtoField.uint8("qnic.operator", "Operator", base.DEC, OPERATORS),
    label = ProtoField.uint16("qnic.label", "Label", base.HEX),
    reason_label = ProtoField.uint16("qnic.reason_label", "Label of what the reason called", base.HEX),
    others_label = ProtoField.uint16("qnic.others_label", "Label of what others called", base.HEX),
    reason_called = ProtoField.uint64("qnic.reason_called", "What the reason called", base.HEX),
    others_called = ProtoField.uint64("qnic.others_called", "What others called", base.HEX),
    element = ProtoField.uint8("qnic.element", "Element", base.DEC, ELEMENTS),
    target = ProtoField.uint64("qnic.target", "Steered buffer", base.HEX),
    message = ProtoField.uint32("qnic.message", "Number of the message"),
    fragment = ProtoField.uint16("qnic.fragment", "Number of the fragment"),
    last_received = ProtoField.uint64("qnic.last_received", "Last frame that arrived, as the process ended"),
    packet_flags = ProtoField.uint8("qnic.packet_flags", "Flags of the packet", base.HEX, { [1] = "last fragment" }),
    needs_checksum = ProtoField.uint8("qnic.needs_checksum", "A checksum is missing"),
    segmentation = ProtoField.uint8("qnic.segmentation", "To be divided", base.DEC, { [0] = "no", [1] = "TCP over IPv4", [4] = "TCP over IPv6" }),
    segment_bytes = ProtoField.uint16("qnic.segment_bytes", "TCP data of each part"),
    checksum_start = ProtoField.uint16("qnic.checksum_start", "What the checksum covers begins at"),
    checksum_offset = ProtoField.uint16("qnic.checksum_offset", "The checksum is behind that by"),
    header_length = ProtoField.uint8("qnic.header_length", "Bytes of the header"),
    qp = ProtoField.uint32("qnic.qp", "Queue pair"),
    peer_qp = ProtoField.uint32("qnic.peer_qp", "Queue pair of the sender"),
    psn = ProtoField.uint32("qnic.psn", "Number of the message of verbs"),
    request = ProtoField.uint8("qnic.request", "Request", base.DEC, REQUESTS),
    reply = ProtoField.uint8("qnic.reply", "Reply", base.DEC, REPLIES),
    timer = ProtoField.uint8("qnic.timer", "Time to wait, as a code"),
    message_flags = ProtoField.uint8("qnic.message_flags", "Flags of the message of verbs", base.HEX),
    qkey = ProtoField.uint32("qnic.qkey", "Key of datagrams of verbs", base.HEX),
    service_level = ProtoField.uint8("qnic.service_level", "Service level"),
    header = ProtoField.uint64("qnic.header", "Header, eight bytes of it", base.HEX),
}

local PART = { { "group", 0, 8 }, { "length", 8, 8 }, { "number", 16, 4 }, { "part", 20, 4 }, { "root", 24, 4 }, { "home", 28, 2 }, { "label", 30, 2 }, { "collective", 32, 1 }, { "operator", 33, 1 }, { "element", 34, 1 }, { "part_bytes", 36, 4 } }
local PIECE = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "psn", 8, 4 }, { "immediate", 12, 4 }, { "offset", 16, 8 }, { "remaining", 24, 8 }, { "address", 32, 8 }, { "key", 40, 4 }, { "request", 44, 1 }, { "message_flags", 45, 1 } }
local GROUP = { { "group", 0, 8 }, { "part_bytes", 8, 4 }, { "home", 12, 2 } }

-- By kind: name of the field, offset in the body, bytes.
local bodies = {
    [ACK] = { { "flags", 0, 4 }, { "offset", 4, 4 }, { "bitmap", 8, 8 }, { "bitmap", 16, 8 }, { "bitmap", 24, 8 }, { "bitmap", 32, 8 } },
    [HELLO] = { { "window", 0, 4 }, { "leaves", 4, 4 } },
    [HELLO_REPLY] = { { "window", 0, 4 }, { "leaves", 4, 4 } },
    [LEAVE] = { { "leaves", 0, 4 }, { "next", 8, 8 } },
    [WINDOW] = { { "window", 0, 4 } },
    [WINDOW_TAKEN] = { { "window", 0, 4 } },
    [129] = { { "last_received", 0, 8 } },
    [NAK] = { { "status", 0, 4 }, { "refused_kind", 4, 1 }, { "refused", 8, 8 } },
    [WRITE] = { { "address", 0, 8 }, { "key", 8, 8 }, { "offset", 16, 8 }, { "remaining", 24, 8 }, { "segment", 32, 2 }, { "flags", 34, 2 }, { "notification", 36, 4 } },
    [READ_REQUEST] = { { "address", 0, 8 }, { "key", 8, 8 }, { "offset", 16, 8 }, { "remaining", 24, 8 }, { "length", 32, 4 }, { "segment", 36, 2 }, { "page_offset", 38, 2 } },
    [READ_RESPONSE] = { { "offset", 0, 8 }, { "page_offset", 8, 2 } },
    [ATOMIC_REQUEST] = { { "address", 0, 8 }, { "key", 8, 8 }, { "operand", 16, 8 }, { "operand", 24, 8 }, { "operand", 32, 8 }, { "operand", 40, 8 }, { "length", 48, 4 }, { "function", 52, 2 }, { "segment", 54, 2 } },
    [ATOMIC_RESPONSE] = { { "value", 0, 8 }, { "detail", 8, 8 } },
    [MESSAGE] = { { "tag", 0, 8 }, { "immediate", 8, 8 }, { "length", 16, 8 }, { "after", 24, 8 }, { "endpoint", 32, 2 }, { "flags", 34, 2 }, { "mark", 36, 4 }, { "incarnation", 40, 4 }, { "source", 44, 4 } },
    [MESSAGE_REQUEST] = { { "tag", 0, 8 }, { "immediate", 8, 8 }, { "length", 16, 8 }, { "after", 24, 8 }, { "endpoint", 32, 2 }, { "flags", 34, 2 }, { "mark", 36, 4 }, { "incarnation", 40, 4 }, { "source", 44, 4 }, { "packets", 48, 4 }, { "packet_length", 52, 4 } },
    [MESSAGE_PERMIT] = { { "receive", 0, 8 }, { "length", 8, 8 }, { "page_offset", 16, 2 } },
    [MESSAGE_DATA] = { { "receive", 0, 8 }, { "offset", 8, 8 }, { "page_offset", 16, 2 } },
    [MESSAGE_END] = { { "status", 0, 4 } },
    [MESSAGE_SEEK] = { { "incarnation", 0, 4 } },
    [MESSAGE_GONE] = { { "incarnation", 0, 4 } },
    [COLLECTIVE_UP] = PART,
    [COLLECTIVE_DOWN] = PART,
    [GROUP_FORM] = { { "name", 0, 8 }, { "group", 8, 8 }, { "size", 16, 4 }, { "members", 20, 4 }, { "parent", 24, 2 }, { "who_port", 26, 2 } },
    [GROUP_END] = { { "group", 0, 8 }, { "status", 8, 4 }, { "home", 12, 2 }, { "who_node", 14, 2 }, { "who_port", 16, 2 }, { "reason_label", 18, 2 }, { "others_label", 20, 2 }, { "reason_called", 24, 8 }, { "others_called", 32, 8 } },
    [GROUP_SEEK] = { { "group", 0, 8 }, { "number", 8, 4 }, { "home", 16, 2 } },
    [MULTICAST] = { { "group", 0, 8 }, { "tag", 8, 8 }, { "immediate", 16, 8 }, { "length", 24, 4 }, { "offset", 28, 4 }, { "rank", 32, 4 }, { "home", 38, 2 }, { "who_node", 40, 2 }, { "who_port", 42, 2 }, { "endpoint", 44, 1 }, { "flags", 45, 1 } },
    [MULTICAST_TAKEN] = { { "group", 0, 8 }, { "rank", 8, 4 }, { "number", 12, 4 }, { "home", 16, 2 } },
    [GROUP_JOIN] = { { "name", 0, 8 }, { "key", 8, 8 }, { "ticket", 16, 8 }, { "size", 24, 4 }, { "rank", 28, 4 } },
    [GROUP_REFUSED] = { { "ticket", 0, 8 }, { "status", 8, 4 }, { "who_node", 12, 2 }, { "who_port", 14, 2 } },
    [GROUP_FORMED] = GROUP,
    [GROUP_START] = GROUP,
    [GROUP_GREET] = GROUP,
    [NAMES] = { { "flags", 0, 4 } },
    [DATAGRAM] = { { "target", 0, 8 }, { "message", 8, 4 }, { "fragment", 12, 2 }, { "packet_flags", 14, 1 }, { "header_length", 15, 1 }, { "header", 16, 8 }, { "header", 24, 8 }, { "header", 32, 8 }, { "header", 40, 8 }, { "header", 48, 8 } },
    [ETHERNET] = { { "needs_checksum", 0, 1 }, { "segmentation", 1, 1 }, { "segment_bytes", 2, 2 }, { "checksum_start", 4, 2 }, { "checksum_offset", 6, 2 } },
    [VERBS_MESSAGE] = PIECE,
    [VERBS_UNRELIABLE] = PIECE,
    [VERBS_READ_DATA] = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "psn", 8, 4 }, { "offset", 16, 8 } },
    [VERBS_READ] = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "psn", 8, 4 }, { "key", 12, 4 }, { "address", 16, 8 }, { "length", 24, 8 } },
    [VERBS_ATOMIC] = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "psn", 8, 4 }, { "key", 12, 4 }, { "address", 16, 8 }, { "operand", 24, 8 }, { "operand", 32, 8 }, { "request", 40, 1 } },
    [VERBS_REPLY] = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "psn", 8, 4 }, { "reply", 12, 1 }, { "timer", 13, 1 }, { "offset", 16, 8 }, { "value", 24, 8 } },
    [VERBS_PROBE] = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "psn", 8, 4 } },
    [VERBS_DATAGRAM] = { { "qp", 0, 4 }, { "peer_qp", 4, 4 }, { "qkey", 8, 4 }, { "immediate", 12, 4 }, { "request", 16, 1 }, { "message_flags", 17, 1 }, { "service_level", 18, 1 } },
    -- The secret behind them is not in the capture.
    [IMPORT_REQUEST] = { { "name", 0, 8 }, { "wait_ms", 8, 4 } },
    [IMPORT_RESPONSE] = { { "address", 0, 8 }, { "length", 8, 8 }, { "key", 16, 8 }, { "status", 24, 4 }, { "access", 28, 4 }, { "segment", 32, 2 } },
}

local payload = ProtoField.bytes("qnic.payload", "Payload")
local last_sequence = ProtoField.uint64("qnic.last_sequence", "Last sequence number of the frame")
local relation = {
    retransmission_of = ProtoField.framenum("qnic.retransmission_of", "Retransmission of", base.NONE, frametype.RETRANS_PREV),
    acknowledged_in = ProtoField.framenum("qnic.acknowledged_in", "Acknowledged in", base.NONE, frametype.ACK),
    acknowledges = ProtoField.framenum("qnic.acknowledges", "Acknowledges up to frame", base.NONE, frametype.ACK),
    response_to = ProtoField.framenum("qnic.response_to", "Response to", base.NONE, frametype.REQUEST),
    response_in = ProtoField.framenum("qnic.response_in", "Response in", base.NONE, frametype.RESPONSE),
    refuses = ProtoField.framenum("qnic.refuses", "Refuses", base.NONE, frametype.REQUEST),
}

local experts = {
    retransmission = ProtoExpert.new("qnic.expert.retransmission", "Retransmission", expert.group.SEQUENCE, expert.severity.NOTE),
    dropped = ProtoExpert.new("qnic.expert.dropped", "The link drops this frame", expert.group.SEQUENCE, expert.severity.WARN),
    corrupted = ProtoExpert.new("qnic.expert.corrupted", "The link corrupts this frame", expert.group.CHECKSUM, expert.severity.WARN),
    refused = ProtoExpert.new("qnic.expert.refused", "Refused", expert.group.RESPONSE_CODE, expert.severity.NOTE),
    malformed = ProtoExpert.new("qnic.expert.malformed", "Not a frame of this version", expert.group.MALFORMED, expert.severity.ERROR),
}

local fields = { payload, last_sequence }
for _, group in ipairs({ link, relation, field }) do
    for _, known in pairs(group) do table.insert(fields, known) end
end
for _, entry in ipairs(envelope) do table.insert(fields, entry[4]) end
qnic.fields = fields
qnic.experts = {
    experts.retransmission, experts.dropped, experts.corrupted, experts.refused, experts.malformed,
}

-- Relations between frames; found when a frame is first seen.
local relations, transmitted, sessions, requests

function qnic.init()
    -- By frame number: table of relation name to frame number.
    relations = {}
    -- By link, ends, session and sequence: last frame that carried it.
    transmitted = {}
    -- By ends and session: frames by sequence, and the number up to which they are acknowledged.
    sessions = {}
    -- By requester, its session, kind of response and operation: frame.
    requests = {}
end

local function relate(frame, name, other)
    relations[frame] = relations[frame] or {}
    relations[frame][name] = relations[frame][name] or other
end

local function session_of(from, to, session)
    local key = string.format("%d>%d/%s", from, to, session)
    local known = sessions[key]
    if not known then
        known = { frames = {}, acknowledged = nil }
        sessions[key] = known
    end
    return known
end

-- How far frames may be apart that are under way together.
local REACH = UInt64(4096)

-- The frames from `first` to `last` are acknowledged now; the latest of them.
local function acknowledge(known, first, last, frame)
    local latest, highest = nil, -1
    local function take(sequence)
        local sent = known.frames[sequence]
        if not sent then return end
        for _, number in ipairs(sent) do relate(number, "acknowledged_in", frame) end
        if sequence > highest then latest, highest = sent[#sent], sequence end
        known.frames[sequence] = nil
    end
    if last > first and last - first > REACH then
        -- Whatever a frame claims, the work is bounded by the number of frames.
        local from, to = first:tonumber(), last:tonumber()
        local chosen = {}
        for sequence in pairs(known.frames) do
            if sequence >= from and sequence <= to then table.insert(chosen, sequence) end
        end
        for _, sequence in ipairs(chosen) do take(sequence) end
        return latest
    end
    local sequence = first
    while sequence <= last do
        take(sequence:tonumber())
        sequence = sequence + 1
    end
    return latest
end

local ZERO = UInt64(0)

local function learn(number, hop, f)
    local from, to = f.source_node, f.destination_node
    local source, destination = f.source_session:tohex(), f.destination_session:tohex()
    if f.sequence ~= ZERO then
        local key = string.format("%s|%d>%d/%s#%s", hop, from, to, source, f.sequence:tohex())
        if transmitted[key] then relate(number, "retransmission_of", transmitted[key]) end
        transmitted[key] = number
        local known = session_of(from, to, source)
        if not known.acknowledged or f.sequence > known.acknowledged then
            local sequence = f.sequence:tonumber()
            known.frames[sequence] = known.frames[sequence] or {}
            table.insert(known.frames[sequence], number)
            if not known.first or f.sequence < known.first then known.first = f.sequence end
            if not known.last or f.sequence > known.last then known.last = f.sequence end
        end
    end
    -- What the other side has sent and this frame acknowledges.
    local back = session_of(to, from, destination)
    if back.first and (not back.acknowledged or f.acknowledge > back.acknowledged) then
        local first = back.acknowledged and back.acknowledged + 1 or back.first
        local last = f.acknowledge < back.last and f.acknowledge or back.last
        local latest = acknowledge(back, first, last, number)
        if latest then relate(number, "acknowledges", latest) end
        back.acknowledged = f.acknowledge
    end
    if f.kind == ACK and back.first then
        -- The bit map: frames beyond the first gap that have arrived.
        for index, word in ipairs(f.bitmap) do
            if word ~= ZERO then
                for bit = 0, 63 do
                    if word:rshift(bit):band(1) ~= ZERO then
                        local sequence = f.acknowledge + (f.offset + 2 + (index - 1) * 64 + bit)
                        acknowledge(back, sequence, sequence, number)
                    end
                end
            end
        end
    end
    -- Requests are known by their requester; a request that is sent again keeps its first frame.
    local function ask(kind, detail)
        local key = string.format("%d/%s/%d/%s", from, source, kind, detail)
        requests[key] = requests[key] or number
    end
    local function respond(kind, detail, name)
        local request = requests[string.format("%d/%s/%d/%s", to, destination, kind, detail)]
        if request then
            relate(number, name or "response_to", request)
            if not name then relate(request, "response_in", number) end
        end
    end
    local operation = f.operation:tohex()
    if f.kind == HELLO then
        ask(HELLO_REPLY, to)
    elseif f.kind == HELLO_REPLY then
        respond(HELLO_REPLY, from)
    elseif response_of[f.kind] then
        ask(response_of[f.kind], operation)
    else
        -- A frame that is no response matches no request.
        respond(f.kind, operation)
    end
    if f.sequence ~= ZERO then
        for index = 0, f.fragments - 1 do ask(NAK, to .. "#" .. (f.sequence + index):tohex()) end
    end
    if f.kind == NAK then respond(NAK, from .. "#" .. f.refused:tohex(), "refuses") end
end

local function value(part, bytes)
    return bytes == 8 and part:le_uint64() or part:le_uint()
end

-- Adds the fields of envelope and body; returns their values by name.
local function add_frame(range, tree)
    local values = { bitmap = {}, flags = 0, offset = 0 }
    if range:len() < ENVELOPE then return nil end
    for _, entry in ipairs(envelope) do
        local name, offset, bytes, known = table.unpack(entry)
        local part = range(offset, bytes)
        tree:add_le(known, part)
        values[name] = value(part, bytes)
    end
    if range:len() < ENVELOPE + values.body_length then return nil end
    for _, entry in ipairs(bodies[values.kind] or {}) do
        local name, offset, bytes = table.unpack(entry)
        if offset + bytes > values.body_length then break end
        local part = range(ENVELOPE + offset, bytes)
        local item = tree:add_le(field[name], part)
        local found = value(part, bytes)
        if name == "bitmap" then
            table.insert(values.bitmap, found)
        else
            values[name] = found
        end
        if name == "flags" and found ~= 0 then
            item:append_text(values.kind == ACK and " (probe: answer at once)" or " (notify)")
        end
    end
    return values
end

local function add_pseudo(range, tree)
    local branch = tree:add(range, "Link")
    branch:add_le(link.version, range(0, 1))
    branch:add_le(link.outcome, range(1, 1))
    local flags_item = branch:add_le(link.flags, range(2, 2))
    for _, name in ipairs({ "duplicated", "reordered", "corrupted", "foreign" }) do
        flags_item:add_le(link[name], range(2, 2))
    end
    branch:add_le(link.from, range(4, 2))
    branch:add_le(link.to, range(6, 2))
    local outcome = range(1, 1):uint()
    branch:append_text(string.format(": %d > %d, %s", range(4, 2):le_uint(),
        range(6, 2):le_uint(), OUTCOMES[outcome] or "?"))
    if outcome ~= 0 then branch:add_proto_expert_info(experts.dropped, "Link: " .. (OUTCOMES[outcome] or "?")) end
    if range(2, 2):le_uint() % 8 >= 4 then branch:add_proto_expert_info(experts.corrupted) end
    return outcome
end

local function describe(f)
    local text = KINDS[f.kind] or ("kind " .. f.kind)
    if f.sequence ~= ZERO then text = text .. " seq=" .. tostring(f.sequence) end
    if f.fragments > 1 then text = text .. "-" .. tostring(f.sequence + (f.fragments - 1)) end
    text = text .. " ack=" .. tostring(f.acknowledge) .. " del=" .. tostring(f.delivered)
    if f.payload_length > 0 then text = text .. " len=" .. f.payload_length end
    if f.kind == NAK then text = text .. " " .. (STATUSES[f.status] or f.status) end
    if f.qp then text = text .. " qp=" .. f.qp .. " from=" .. f.peer_qp end
    if f.psn then text = text .. " psn=" .. f.psn end
    if f.reply then text = text .. " " .. (REPLIES[f.reply] or f.reply) end
    if f.request then text = text .. " " .. (REQUESTS[f.request] or f.request) end
    if f.kind == DATAGRAM and f.message then text = text .. " message=" .. f.message .. "." .. f.fragment end
    return text
end

function qnic.dissector(buffer, pinfo, root)
    pinfo.cols.protocol = "qnic"
    local tree = root:add(qnic, buffer())
    if buffer:len() < PSEUDO or buffer(0, 1):uint() ~= PSEUDO_VERSION then
        tree:add_proto_expert_info(experts.malformed, "No pseudo header of version 1")
        return
    end
    local outcome = add_pseudo(buffer(0, PSEUDO), tree)
    if buffer:len() == PSEUDO then return end
    local frame = buffer(PSEUDO)
    local f = add_frame(frame, tree)
    if not f then
        pinfo.cols.info = "[frame cut by the snap length]"
        return
    end
    pinfo.cols.src = "node " .. f.source_node .. " port " .. f.source_port
    pinfo.cols.dst = "node " .. f.destination_node .. " port " .. f.destination_port
    if f.magic ~= MAGIC or f.version ~= VERSION then
        tree:add_proto_expert_info(experts.malformed)
        pinfo.cols.info = "[not a frame of version " .. VERSION .. "]"
        return
    end
    local header = ENVELOPE + f.body_length
    if frame:len() > header then tree:add(payload, frame(header)) end
    if not pinfo.visited and outcome ~= CUT_IN_TRANSIT then
        learn(pinfo.number, tostring(buffer(4, 4):bytes()), f)
    end
    if f.fragments > 1 then
        tree:add(last_sequence, f.sequence + (f.fragments - 1)):set_generated()
    end
    local text = describe(f)
    tree:append_text(", " .. text)
    local found = relations[pinfo.number] or {}
    for _, name in ipairs({ "retransmission_of", "acknowledged_in", "acknowledges", "response_to", "response_in", "refuses" }) do
        if found[name] then tree:add(relation[name], found[name]):set_generated() end
    end
    if found.retransmission_of then
        tree:add_proto_expert_info(experts.retransmission, "Retransmission of frame " .. found.retransmission_of)
        text = "[retransmission] " .. text
    end
    if f.kind == NAK then
        tree:add_proto_expert_info(experts.refused, "Refused: " .. (STATUSES[f.status] or f.status))
    end
    if outcome ~= 0 then text = "[" .. (OUTCOMES[outcome] or "?") .. "] " .. text end
    pinfo.cols.info = text
    -- What an Ethernet port carries is shown as on any Ethernet.
    if f.kind == ETHERNET and frame:len() > header then
        ethernet:call(frame(header):tvb(), pinfo, root)
        pinfo.cols.info:prepend("[" .. f.source_node .. " > " .. f.destination_node .. "] ")
        if outcome ~= 0 then pinfo.cols.info:prepend("[" .. (OUTCOMES[outcome] or "?") .. "] ") end
    end
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, qnic)
