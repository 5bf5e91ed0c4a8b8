//! Holds every layout against `layout.txt`: a layout that changes without a new
//! [`qnic_abi::ABI_VERSION`] fails here.
//!
//! After a deliberate change: raise `ABI_VERSION`, then
//! `QNIC_BLESS=1 cargo test -p qnic-abi --test layout`.

use std::fmt::Write as _;

use qnic_abi::command::COMMAND_BYTES;
use qnic_abi::host_area::{
    COMPLETIONS_WAITING, COMPLETION_ENTRIES, COMPLETION_RING, COMPLETION_TAIL, ERRORS, ERROR_RING,
    HEAD, HOST_PAGES, NOTIFICATIONS_LOST, NOTIFICATION_ENTRIES, NOTIFICATION_RING,
    NOTIFICATION_TAIL, POOL, QUEUE_STATUS, READS_DONE, RECEIVE_DOORBELLS, RESULTS, RESULT_RECORDS,
    SEND_DOORBELLS, SIGNALS, WAKE_GENERATION, WRITES_DONE,
};
use qnic_abi::layout::Layout;
use qnic_abi::window::{
    ARMED, AWAKE, COMMAND_ENTRIES, COMMAND_QUEUE, COMPLETION_HEAD, NOTIFICATION_HEAD,
    SIGNAL_WAKE_REQUEST, WAKE_REQUEST, WINDOW_BYTES,
};
use qnic_abi::{
    atomic, attach, collective, command, context, control, counters, datagram, directory, ethernet,
    event, export, header, host_area, message, multicast, pool, process_names, rdma, remote_memory,
    stream, uapi, verbs, volume, wire,
};

/// Size of a structure, and offsets of its fields.
fn layout<T: Layout>() -> String {
    let mut out = format!("{} {}\n", T::NAME, size_of::<T>());
    for field in T::FIELDS {
        writeln!(out, "  {} {}", field.offset, field.name).unwrap();
    }
    out
}

fn verbs_layouts() -> [String; 29] {
    [
        layout::<verbs::rings::QueueHeader>(),
        layout::<verbs::rings::Sge>(),
        layout::<verbs::rings::Gather>(),
        layout::<verbs::rings::SendEntry>(),
        layout::<verbs::rings::MemoryOperands>(),
        layout::<verbs::rings::AtomicOperands>(),
        layout::<verbs::rings::DatagramOperands>(),
        layout::<verbs::rings::ReceiveEntry>(),
        layout::<verbs::rings::WorkCompletion>(),
        layout::<verbs::requests::Ring>(),
        layout::<verbs::requests::CreateCompletionQueue>(),
        layout::<verbs::requests::CreateSharedReceiveQueue>(),
        layout::<verbs::requests::ModifySharedReceiveQueue>(),
        layout::<verbs::requests::CreateQueuePair>(),
        layout::<verbs::requests::ModifyQueuePair>(),
        layout::<verbs::requests::QueryQueuePair>(),
        layout::<verbs::requests::QueuePairInfo>(),
        layout::<verbs::requests::RegisterMemory>(),
        layout::<verbs::requests::DestroyObject>(),
        layout::<verbs::commands::VerbsSendCommand>(),
        layout::<verbs::commands::VerbsArmCommand>(),
        layout::<verbs::frames::VerbsMessage>(),
        layout::<verbs::frames::VerbsRead>(),
        layout::<verbs::frames::VerbsReadData>(),
        layout::<verbs::frames::VerbsAtomic>(),
        layout::<verbs::frames::VerbsReply>(),
        layout::<verbs::frames::VerbsProbe>(),
        layout::<verbs::frames::VerbsUnreliable>(),
        layout::<verbs::frames::VerbsDatagram>(),
    ]
}

fn layouts() -> String {
    let mut out = format!("version {}\n", qnic_abi::ABI_VERSION);
    out.extend([
        layout::<attach::DeviceConfig>(),
        layout::<header::SramHeader>(),
        layout::<command::CommandHeader>(),
        layout::<rdma::WriteCommand>(),
        layout::<rdma::ReadCommand>(),
        layout::<rdma::FenceCommand>(),
        layout::<atomic::AtomicCommand>(),
        layout::<host_area::ErrorRecord>(),
        layout::<host_area::ResultRecord>(),
        layout::<atomic::WaitQueue>(),
        layout::<control::RequestHeader>(),
        layout::<control::Hello>(),
        layout::<control::NewProcess>(),
        layout::<export::Importer>(),
        layout::<export::ExportOptions>(),
        layout::<control::Export>(),
        layout::<control::Unexport>(),
        layout::<control::Import>(),
        layout::<control::FaultDone>(),
        layout::<control::ReplyHeader>(),
        layout::<control::Imported>(),
        layout::<control::Query>(),
        layout::<counters::Counter>(),
        layout::<counters::CounterPage>(),
        layout::<event::Event>(),
        layout::<host_area::CompletionEntry>(),
        layout::<message::SendCommand>(),
        layout::<message::ReceiveCommand>(),
        layout::<message::CancelCommand>(),
        layout::<message::ProbeCommand>(),
        layout::<message::MessagePermit>(),
        layout::<message::MessageData>(),
        layout::<message::MessageEnd>(),
        layout::<message::MessageSeek>(),
        layout::<message::MessageGone>(),
        layout::<collective::JoinGroupCommand>(),
        layout::<collective::LeaveGroupCommand>(),
        layout::<collective::CollectiveCommand>(),
        layout::<collective::GroupJoin>(),
        layout::<collective::GroupRefused>(),
        layout::<collective::GroupForm>(),
        layout::<collective::GroupEnd>(),
        layout::<collective::GroupSeek>(),
        layout::<collective::PartFields>(),
        layout::<collective::StateFields>(),
        layout::<multicast::MulticastCommand>(),
        layout::<multicast::Multicast>(),
        layout::<multicast::MulticastTaken>(),
        layout::<context::MessageContext>(),
        layout::<context::PageDescriptor>(),
        layout::<context::ContextCommand>(),
        layout::<process_names::ProcessName>(),
        layout::<process_names::NameCommand>(),
        layout::<process_names::Names>(),
        layout::<process_names::NameEntry>(),
        layout::<datagram::DatagramSendCommand>(),
        layout::<datagram::DatagramPostCommand>(),
        layout::<datagram::DatagramWithdrawCommand>(),
        layout::<datagram::Datagram>(),
        layout::<ethernet::Ethernet>(),
        layout::<remote_memory::Header>(),
        layout::<remote_memory::Attach>(),
        layout::<wire::Envelope>(),
        layout::<wire::Ack>(),
        layout::<wire::Leave>(),
        layout::<wire::Nak>(),
        layout::<rdma::Write>(),
        layout::<rdma::ReadRequest>(),
        layout::<rdma::ReadResponse>(),
        layout::<atomic::AtomicRequest>(),
        layout::<atomic::AtomicResponse>(),
        layout::<directory::ImportRequest>(),
        layout::<directory::ImportResponse>(),
        layout::<stream::StreamHeader>(),
    ]);
    out.extend(verbs_layouts());
    for (kind, name) in qnic_abi::names::KINDS {
        writeln!(out, "kind {kind:#04x} {name}").unwrap();
    }
    out.push_str("uapi\n");
    out.extend([
        layout::<uapi::Register>(),
        layout::<uapi::Export>(),
        layout::<uapi::Unexport>(),
        layout::<uapi::Import>(),
        layout::<uapi::Wait>(),
        layout::<uapi::ResetQueue>(),
        layout::<uapi::Wake>(),
        layout::<uapi::Info>(),
        layout::<uapi::Counters>(),
        layout::<pool::DatagramPart>(),
        layout::<pool::OpenPools>(),
        layout::<pool::PoolKick>(),
        layout::<pool::PoolWait>(),
        layout::<pool::PoolInfo>(),
        layout::<volume::AttachVolume>(),
        layout::<volume::DetachVolume>(),
        layout::<volume::VolumeInfo>(),
        layout::<volume::VolumeCounters>(),
        layout::<volume::VolumeServer>(),
        layout::<volume::VolumeLatency>(),
        layout::<volume::ServeMemory>(),
        layout::<volume::LeaveMemory>(),
        layout::<volume::MemoryInfo>(),
        layout::<volume::MemoryCounters>(),
    ]);
    let shape = pool::Shape::new(1500, 9, 17).unwrap();
    for queue in pool::Queue::ALL {
        let (head, tail, slots) = (queue.head(), queue.tail(), shape.queue(queue));
        writeln!(out, "pools {queue:?} head {head} tail {tail} slots {slots}").unwrap();
    }
    let last = shape.frame(pool::Pool::Output, 16);
    writeln!(
        out,
        "pools busy {} need_frames {} want_wake {} frames {} last {last} bytes {}",
        pool::BUSY,
        pool::NEED_FRAMES,
        pool::WANT_WAKE,
        shape.first_frame(),
        shape.bytes()
    )
    .unwrap();
    let long = pool::Shape::new(10_000, 9, 17).unwrap();
    writeln!(
        out,
        "long frames stride {} block pages {} outputs {} bytes {}",
        long.stride(),
        long.block_pages(),
        long.frame(pool::Pool::Output, 0),
        long.bytes()
    )
    .unwrap();
    out += &format!(
        "window {WINDOW_BYTES} awake {AWAKE} wake_request {WAKE_REQUEST} \
         signal {SIGNAL_WAKE_REQUEST} head {NOTIFICATION_HEAD} armed {ARMED} queue {COMMAND_QUEUE} \
         entries {COMMAND_ENTRIES} command {COMMAND_BYTES} completion head {COMPLETION_HEAD}\n\
         host area pages {HOST_PAGES} head {HEAD} writes {WRITES_DONE} reads {READS_DONE} \
         errors {ERRORS} status {QUEUE_STATUS} generation {WAKE_GENERATION} ring {ERROR_RING} \
         results {RESULTS} records {RESULT_RECORDS} signals {SIGNALS} tail {NOTIFICATION_TAIL} \
         lost {NOTIFICATIONS_LOST} notifications {NOTIFICATION_RING} {NOTIFICATION_ENTRIES} \
         completions {COMPLETION_RING} {COMPLETION_ENTRIES} tail {COMPLETION_TAIL} waiting {COMPLETIONS_WAITING} \
         doorbells {SEND_DOORBELLS} {RECEIVE_DOORBELLS} pool {POOL}\n"
    );
    out
}

#[test]
fn layout_digest() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/layout.txt");
    let now = layouts();
    if std::env::var_os("QNIC_BLESS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert!(
        now == golden,
        "a layout changed: raise ABI_VERSION and bless {path} (see the head of this test)\n{now}"
    );
}
