//! Holds every layout against `layout.txt`: a layout that changes without a new
//! [`qnic_abi::ABI_VERSION`] fails here.
//!
//! After a deliberate change: raise `ABI_VERSION`, then
//! `QNIC_BLESS=1 cargo test -p qnic-abi --test layout`.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};

use qnic_abi::{
    atomic, attach, command, control, directory, event, header, host_area, rdma, uapi, window, wire,
};

macro_rules! layout {
    ($out:expr, $type:ident, $($field:ident),+ $(,)?) => {
        writeln!($out, "{} {}", stringify!($type), size_of::<$type>()).unwrap();
        // The destructuring fails to compile when a field is missing from the list.
        #[allow(dead_code, clippy::items_after_statements)]
        {
            let _ = |value: $type| { let $type { $($field: _),+ } = value; };
        }
        $(writeln!($out, "  {} {}", offset_of!($type, $field), stringify!($field)).unwrap();)+
    };
}

fn layouts() -> String {
    use atomic::{AtomicCommand, AtomicRequest, AtomicResponse, WaitQueue};
    use attach::DeviceConfig;
    use command::CommandHeader;
    use control::{
        Export, FaultDone, Hello, Import, Imported, NewProcess, ReplyHeader, RequestHeader,
        Statistics, Unexport,
    };
    use directory::{ImportRequest, ImportResponse};
    use event::Event;
    use header::SramHeader;
    use host_area::{ErrorRecord, ResultRecord};
    use rdma::{ReadCommand, ReadRequest, ReadResponse, Write, WriteCommand};
    use wire::{Ack, Envelope, Nak};

    let mut out = String::new();
    writeln!(out, "version {}", qnic_abi::ABI_VERSION).unwrap();
    layout!(
        out,
        DeviceConfig,
        magic,
        abi_version,
        node,
        reserved0,
        sram_bytes,
        doorbells,
        windows,
        reserved1
    );
    layout!(
        out,
        SramHeader,
        magic,
        abi_version,
        node,
        reserved0,
        state,
        doorbells,
        sram_bytes,
        windows_offset,
        windows,
        window_bytes,
        command_entries,
        command_bytes,
        inline_max,
        signal_counters,
        host_pages,
        segments_per_process,
        table_offset,
        table_rows,
        frames,
        vpn_offset,
        key_offset,
        lock_offset,
        dirty_driver_offset,
        dirty_nic_offset,
    );
    layout!(
        out,
        CommandHeader,
        opcode,
        flags,
        inline_length,
        reserved,
        remote_node,
        remote_port
    );
    layout!(
        out,
        WriteCommand,
        header,
        length,
        local_address,
        local_key,
        remote_address,
        remote_key,
        local_segment,
        remote_segment,
        notification,
        flags,
        reserved,
    );
    layout!(
        out,
        ReadCommand,
        header,
        length,
        local_address,
        local_key,
        remote_address,
        remote_key,
        local_segment,
        remote_segment,
        reserved0,
        reserved1,
    );
    layout!(
        out,
        AtomicCommand,
        header,
        remote_address,
        remote_key,
        operands,
        length,
        function,
        record,
        remote_segment,
        reserved0,
        reserved1,
    );
    layout!(out, ErrorRecord, command, status, reserved);
    layout!(out, ResultRecord, value, detail);
    layout!(out, WaitQueue, head, tail, count, pending, value, reserved);
    layout!(out, RequestHeader, opcode, vni, reserved);
    layout!(out, Hello, abi_version, reserved, frames);
    layout!(out, NewProcess, port, flags, pid, host_area);
    layout!(out, Export, segment, flags, access, name, address, length, key, page_key);
    layout!(out, Unexport, segment, reserved);
    layout!(out, Import, node, port, wait_ms, name);
    layout!(out, FaultDone, address, pages, status);
    layout!(out, ReplyHeader, status, reserved);
    layout!(out, Imported, segment, reserved, access, address, length, key);
    layout!(
        out,
        Statistics,
        processes,
        segments,
        operations,
        parked_imports,
        faults_pending,
        frames_held,
        commands,
        bytes_sent,
        bytes_received,
        notifications,
        atomics,
        source_hits,
        source_misses,
        destination_hits,
        destination_misses,
        lookups_lost,
        restarts,
        bounces,
        bytes_bounced,
        bounce_bytes,
        bounce_bytes_peak,
        protection_errors,
        errors_key,
        errors_access,
        errors_range,
        errors_gone,
        malformed_commands,
        aborted,
        malformed_frames,
        stale_frames,
        frames_resent,
        resend_timeouts,
        duplicate_frames,
        frames_outside,
        acknowledgements,
        peers_given_up,
    );
    layout!(out, Event, kind, vni, flags, address, pages, status, reserved);
    layout!(
        out,
        Envelope,
        magic,
        version,
        kind,
        fragments,
        body_length,
        payload_length,
        source_node,
        destination_node,
        source_port,
        destination_port,
        source_session,
        destination_session,
        sequence,
        acknowledge,
        delivered,
        operation,
    );
    layout!(out, Ack, flags, offset, bitmap);
    layout!(out, Nak, status, kind, reserved, sequence);
    layout!(
        out,
        Write,
        address,
        key,
        offset,
        remaining,
        segment,
        flags,
        notification
    );
    layout!(
        out,
        ReadRequest,
        address,
        key,
        offset,
        remaining,
        length,
        segment,
        page_offset
    );
    layout!(out, ReadResponse, offset, page_offset, reserved);
    layout!(
        out,
        AtomicRequest,
        address,
        key,
        operands,
        length,
        function,
        segment
    );
    layout!(out, AtomicResponse, value, detail);
    layout!(out, ImportRequest, name, wait_ms, reserved);
    layout!(
        out,
        ImportResponse,
        address,
        length,
        key,
        status,
        access,
        segment,
        reserved
    );
    for (kind, name) in qnic_abi::names::KINDS {
        writeln!(out, "kind {kind:#04x} {name}").unwrap();
    }
    out.push_str(&uapi_layouts());
    writeln!(
        out,
        "window {} awake {} wake_request {} signal {} head {} armed {} queue {} entries {} command {}",
        window::WINDOW_BYTES,
        window::AWAKE,
        window::WAKE_REQUEST,
        window::SIGNAL_WAKE_REQUEST,
        window::NOTIFICATION_HEAD,
        window::ARMED,
        window::COMMAND_QUEUE,
        window::COMMAND_ENTRIES,
        command::COMMAND_BYTES
    )
    .unwrap();
    writeln!(
        out,
        "host area pages {} head {} writes {} reads {} errors {} status {} generation {} ring {} results {} records {} signals {} tail {} lost {} notifications {} {}",
        host_area::HOST_PAGES,
        host_area::HEAD,
        host_area::WRITES_DONE,
        host_area::READS_DONE,
        host_area::ERRORS,
        host_area::QUEUE_STATUS,
        host_area::WAKE_GENERATION,
        host_area::ERROR_RING,
        host_area::RESULTS,
        host_area::RESULT_RECORDS,
        host_area::SIGNALS,
        host_area::NOTIFICATION_TAIL,
        host_area::NOTIFICATIONS_LOST,
        host_area::NOTIFICATION_RING,
        host_area::NOTIFICATION_ENTRIES
    )
    .unwrap();
    out
}

fn uapi_layouts() -> String {
    use uapi::{Export, Import, Info, Register, ResetQueue, Unexport, Wait, Wake};

    let mut out = String::from("uapi\n");
    layout!(
        out,
        Register,
        status,
        port,
        node,
        vni,
        doorbell_value,
        doorbell_offset,
        inline_max,
        flags
    );
    layout!(out, Export, status, access, name, address, length, key, segment, reserved, flags);
    layout!(out, Unexport, status, segment, reserved);
    layout!(
        out, Import, status, node, port, name, wait_ms, access, address, length, key, segment,
        reserved
    );
    layout!(out, Wait, status, flags, generation, timeout_ns);
    layout!(out, ResetQueue, status, reserved);
    layout!(out, Wake, status, reserved);
    layout!(
        out,
        Info,
        status,
        abi_version,
        node,
        reserved0,
        windows,
        sram_bytes,
        frames,
        pages_mapped,
        pages_inserted,
        pages_invalidated,
        pages_evicted,
        faults_served,
        faults_failed,
        lock_conflicts,
        wakes,
        nic,
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
