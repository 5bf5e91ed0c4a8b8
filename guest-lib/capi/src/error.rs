//! What has failed: codes, and the detail of the last error.
//!
//! Each call returns 0, or a negative code. `qnic_strerror` says what a code means, and
//! `qnic_last_error` what has failed in this thread: where, and what to do about it. A call that
//! succeeds changes no detail.
//!
//! Codes from -1 to -99 are those of the NIC, with its numbers. Codes from -101 on are the library's.
//! A code keeps its number for ever; later versions add some.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, CStr, CString};
use std::sync::OnceLock;

use qnic::{Error, Status};

use crate::border::{call, head, Out};
use crate::codes::*;
use crate::failure::{with_last, Failure, Kind};

/// Version of this interface: 10,000 × major + 100 × minor + patch.
pub const QNIC_VERSION: u32 = 200;

/// Meanings of the codes of the library. Those of the NIC have its own words.
const TEXTS: &[(c_int, &CStr)] = &[
    (
        QNIC_E_OPEN,
        c"the device file or the socket cannot be opened",
    ),
    (QNIC_E_HOST, c"the host-mode node cannot be started"),
    (
        QNIC_E_SETTING,
        c"an environment variable, or an option of the same meaning, has a value that is not valid",
    ),
    (
        QNIC_E_NO_MACHINE,
        c"the process belongs to no parallel machine",
    ),
    (QNIC_E_NO_PATH, c"the two nodes cannot talk"),
    (QNIC_E_ARGUMENT, c"an argument makes no sense"),
    (
        QNIC_E_HANDLE,
        c"the handle is null, was closed, or is of another type",
    ),
    (QNIC_E_BUSY, c"another call uses this handle"),
    (
        QNIC_E_NEWER_PROGRAM,
        c"a structure has fields that this library does not know",
    ),
    (
        QNIC_E_PANIC,
        c"a defect of the library: the call was abandoned",
    ),
    (
        QNIC_E_FOREIGN_REQUEST,
        c"the requests are of several endpoints",
    ),
    (
        QNIC_E_NO_CONTEXT,
        c"all contexts of this direction are under way",
    ),
    (
        QNIC_E_POOL_FULL,
        c"the pool has no run of pages of that length",
    ),
    (
        QNIC_E_OUT_OF_RANGE,
        c"a range lies outside of its segment or buffer",
    ),
    (
        QNIC_E_NOT_EXPORTED,
        c"the local memory is not exported by this endpoint",
    ),
    (
        QNIC_E_ARMED,
        c"the notification has a handler or is watched by the queue",
    ),
    (
        QNIC_E_NOTIFICATIONS_LOST,
        c"one-shot notifications were dropped: the queue was full",
    ),
    (QNIC_E_POLLED, c"the endpoint has a poller already"),
    (
        QNIC_E_CHANNEL_BROKEN,
        c"the other end of the channel violates its protocol",
    ),
    (
        QNIC_E_MESSAGE_TOO_LONG,
        c"the message or datagram is longer than one can be",
    ),
    (
        QNIC_E_CHANNEL_CLOSED,
        c"the other end has closed the channel or stream: nothing more comes",
    ),
    (
        QNIC_E_QUEUE_FULL,
        c"the command queue stayed full up to the time limit: nothing was issued",
    ),
    (QNIC_E_DEVICE_GONE, c"the device is gone or was reset"),
    (
        QNIC_E_FORKED,
        c"the NIC was opened by the parent of this process",
    ),
    (
        QNIC_E_QUEUE_RESET,
        c"the command was dropped when the command queue was reset",
    ),
    (QNIC_E_BROKEN, c"a process died in the queue of the object"),
    (QNIC_E_HELD, c"the lock is held by a process that lives"),
    (QNIC_E_WOULD_BLOCK, c"nothing can be done without waiting"),
    (QNIC_E_STREAM, c"the stream has failed"),
    (QNIC_E_STREAM_ENDED, c"the stream was ended on this side"),
    (QNIC_E_TOO_MANY_STREAMS, c"the table of streams is full"),
    (QNIC_E_SYSTEM, c"the system refused a call"),
    (
        QNIC_E_INCOMPATIBLE,
        c"driver, NIC and library are of different versions",
    ),
    (
        QNIC_E_OTHER,
        c"an error that this version of the interface has no code for",
    ),
];

fn texts() -> &'static BTreeMap<c_int, CString> {
    static ALL: OnceLock<BTreeMap<c_int, CString>> = OnceLock::new();
    ALL.get_or_init(|| {
        let statuses = (0..99).filter_map(|code| Status::try_from(code).ok());
        let text = |status: Status| CString::new(status.to_string()).unwrap_or_default();
        let statuses = statuses.map(|status| (-(status.code() as c_int), text(status)));
        let own = TEXTS.iter().map(|(code, text)| (*code, (*text).into()));
        statuses.chain(own).collect()
    })
}

/// Says what a code means: a text that lives for ever, never null. Any thread may ask at any time.
#[no_mangle]
pub extern "C" fn qnic_strerror(code: c_int) -> *const c_char {
    let text = texts().get(&code).map(CString::as_c_str);
    text.unwrap_or(c"no code of this version of the library")
        .as_ptr()
}

/// The version of the library that the program runs with, as `QNIC_VERSION`.
#[no_mangle]
pub extern "C" fn qnic_version() -> u32 {
    QNIC_VERSION
}

/// The process at the other end, its node or the segment is gone.
pub const QNIC_ERROR_PEER_GONE: u32 = 1;

/// `node` and `port` say which process it was about.
pub const QNIC_ERROR_HAS_PEER: u32 = 2;

/// `segment`, `offset` and `length` say which transfer was the first that failed.
pub const QNIC_ERROR_HAS_TRANSFER: u32 = 4;

/// What has failed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_error {
    /// Size of this structure.
    pub size: usize,
    /// The code; 0 if nothing has failed in this thread.
    pub code: c_int,
    /// Which of the fields below say something: `QNIC_ERROR_…`.
    pub flags: u32,
    /// What has failed, where, and what to do about it. Never null; lives until the next call of
    /// `qnic_last_error` in this thread.
    pub message: *const c_char,
    /// Node of the other process.
    pub node: u16,
    /// Port of the other process.
    pub port: u16,
    /// The number of the system (`errno`), if the system has refused a call; otherwise 0.
    pub system_errno: c_int,
    /// Name of the remote segment.
    pub segment: u64,
    /// Offset in it, in bytes.
    pub offset: u64,
    /// Bytes of the transfer.
    pub length: u64,
    /// How many transfers failed.
    pub failures: u64,
}

head!(qnic_error {
    code,
    flags,
    message,
    node,
    port,
    system_errno,
    segment,
    offset,
    length,
    failures
});

impl qnic_error {
    fn new(failure: Option<&Failure>, message: &CStr) -> Self {
        let mut shown = qnic_error {
            size: size_of::<Self>(),
            code: failure.map_or(0, Failure::code),
            flags: 0,
            message: message.as_ptr(),
            node: 0,
            port: 0,
            system_errno: 0,
            segment: 0,
            offset: 0,
            length: 0,
            failures: 0,
        };
        let Some(Failure(Kind::Library(error))) = failure else {
            return shown;
        };
        if error.is_peer_gone() {
            shown.flags |= QNIC_ERROR_PEER_GONE;
        }
        let peer = match error {
            Error::Transfer(all) => {
                let more: u64 = all.more.iter().map(|more| more.count).sum();
                shown.failures = all.failures.len() as u64 + more;
                all.failures.first().map(|first| {
                    shown.flags |= QNIC_ERROR_HAS_TRANSFER;
                    shown.segment = first.segment.0;
                    (shown.offset, shown.length) = (first.offset, first.length);
                    (first.node, first.port)
                })
            }
            Error::Message(error) => error.peer,
            Error::PeerLost { node, port, .. } => Some((*node, *port)),
            _ => None,
        };
        if let Some((node, port)) = peer {
            shown.flags |= QNIC_ERROR_HAS_PEER;
            (shown.node, shown.port) = (node.0, port.0);
        }
        if let Error::System { source, .. } | Error::Open { source, .. } = error {
            shown.system_errno = source.raw_os_error().unwrap_or(0);
        }
        shown
    }
}

/// Tells of the last call that has failed in this thread.
///
/// Fails with `QNIC_E_ARGUMENT` if `error` does not say its size; that is no error that it tells of.
#[no_mangle]
pub extern "C" fn qnic_last_error(error: Out<qnic_error>) -> c_int {
    thread_local! {
        static MESSAGE: RefCell<CString> = RefCell::default();
    }
    call(|| {
        with_last(|failure| {
            let text = match failure.map(|failure| &failure.0) {
                Some(Kind::Library(error)) => error.to_string(),
                Some(Kind::Own(_, text)) => text.clone(),
                None => "nothing has failed in this thread".to_owned(),
            };
            let text = CString::new(text.replace('\0', "")).unwrap_or_default();
            MESSAGE.with_borrow_mut(|message| {
                *message = text;
                error.set_head(qnic_error::new(failure, message))
            })
        })
    })
}
