//! Why a call has failed, and what is kept of it for the thread that made the call.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_int;

use qnic::Error;

use crate::codes::*;

/// Why a call has failed.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a call has failed.
#[derive(Debug)]
pub struct Failure(pub(crate) Kind);

/// Of the library, or of this interface.
#[derive(Debug)]
pub(crate) enum Kind {
    Library(Error),
    Own(c_int, String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(Kind::Library(error))
    }
}

impl Failure {
    fn own(code: c_int, text: impl Into<String>) -> Self {
        Failure(Kind::Own(code, text.into()))
    }

    /// An argument that makes no sense.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::own(QNIC_E_ARGUMENT, text)
    }

    /// A handle that names nothing.
    pub(crate) fn handle(is_null: bool) -> Self {
        let text = match is_null {
            true => "a handle is null: open one first",
            false => "a handle was closed, or is of another type",
        };
        Self::own(QNIC_E_HANDLE, text)
    }

    /// A handle that another call uses.
    pub(crate) fn busy() -> Self {
        let text = "another call uses this handle: wait until it has returned";
        Self::own(QNIC_E_BUSY, text)
    }

    /// A structure with fields that this library does not know.
    pub(crate) fn newer() -> Self {
        let text =
            "a structure has fields that this library does not know: install the version that \
                    the program was compiled with";
        Self::own(QNIC_E_NEWER_PROGRAM, text)
    }

    /// Local memory that no segment of the endpoint holds.
    pub(crate) fn not_exported(address: u64, length: usize) -> Self {
        let text = format!(
            "{length} bytes at {address:#x} do not lie in a segment that this endpoint exports: export \
             them first"
        );
        Self::own(QNIC_E_NOT_EXPORTED, text)
    }

    /// No imported segment holds a remote address.
    pub(crate) fn no_such_segment(address: u64) -> Self {
        let text = format!("no imported segment of that process holds {address:#x}: import it");
        Self::own(QNIC_E_NO_SUCH_SEGMENT, text)
    }

    /// A receive of many messages has ended.
    pub(crate) fn ended() -> Self {
        let text = "the receive has ended, and all of its messages are taken: post another one";
        Self::own(QNIC_E_CANCELLED, text)
    }

    /// A claim that has no message.
    pub(crate) fn no_message() -> Self {
        let text = "the claim has no message: wait for it, and receive it once";
        Self::own(QNIC_E_NO_MESSAGE, text)
    }

    /// Nothing is there yet.
    pub(crate) fn would_block() -> Self {
        Error::WouldBlock.into()
    }

    /// A panic that [`call`] has caught.
    pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        // Its drop could panic, too.
        std::mem::forget(panic);
        let text = text.unwrap_or_default();
        let text = format!("a defect of the library, please report it: {text}");
        Self::own(QNIC_E_PANIC, text)
    }

    /// The code that C gets.
    pub(crate) fn code(&self) -> c_int {
        match &self.0 {
            Kind::Library(error) => code(error),
            Kind::Own(code, _) => *code,
        }
    }
}

/// The code of an error of the library.
fn code(error: &Error) -> c_int {
    if let Some(status) = error.status() {
        return -(status.code() as c_int);
    }
    match error {
        Error::Refused { .. }
        | Error::Transfer { .. }
        | Error::Message { .. }
        | Error::Group { .. }
        | Error::Name { .. }
        | Error::PeerLost { .. }
        | Error::QueueFailed { .. }
        | Error::Parallel { .. } => QNIC_E_OTHER,
        Error::Open { .. } => QNIC_E_OPEN,
        Error::Host { .. } => QNIC_E_HOST,
        Error::Setting { .. }
        | Error::InlineMax { .. }
        | Error::Operations { .. }
        | Error::NoHostMode { .. } => QNIC_E_SETTING,
        Error::NoMachine { .. } => QNIC_E_NO_MACHINE,
        Error::NoPath { .. } => QNIC_E_NO_PATH,
        Error::ReservedPort { .. }
        | Error::BadName { .. }
        | Error::BadCollective { .. }
        | Error::BadPiece { .. }
        | Error::BadChannel { .. }
        | Error::TooManyImporters { .. }
        | Error::EmptyMemory => QNIC_E_ARGUMENT,
        Error::ForeignRequest => QNIC_E_FOREIGN_REQUEST,
        Error::NoContext { .. } => QNIC_E_NO_CONTEXT,
        Error::PoolFull { .. } => QNIC_E_POOL_FULL,
        Error::OutOfRange { .. } => QNIC_E_OUT_OF_RANGE,
        Error::NotExported { .. } | Error::ForeignSegment => QNIC_E_NOT_EXPORTED,
        Error::Armed { .. } => QNIC_E_ARMED,
        Error::NotificationsLost { .. } => QNIC_E_NOTIFICATIONS_LOST,
        Error::Polled => QNIC_E_POLLED,
        Error::ChannelBroken { .. } => QNIC_E_CHANNEL_BROKEN,
        Error::MessageTooLong { .. } | Error::DatagramTooLong { .. } => QNIC_E_MESSAGE_TOO_LONG,
        Error::ChannelClosed => QNIC_E_CHANNEL_CLOSED,
        Error::QueueFull => QNIC_E_QUEUE_FULL,
        Error::DeviceGone => QNIC_E_DEVICE_GONE,
        Error::Forked => QNIC_E_FORKED,
        Error::QueueReset => QNIC_E_QUEUE_RESET,
        Error::Broken { .. } => QNIC_E_BROKEN,
        Error::Held { .. } => QNIC_E_HELD,
        Error::WouldBlock => QNIC_E_WOULD_BLOCK,
        Error::Stream { .. } => QNIC_E_STREAM,
        Error::StreamEnded => QNIC_E_STREAM_ENDED,
        Error::TooManyStreams => QNIC_E_TOO_MANY_STREAMS,
        Error::System { .. } => QNIC_E_SYSTEM,
        Error::Incompatible { .. } | Error::Count { .. } => QNIC_E_INCOMPATIBLE,
        Error::TimedOut => QNIC_E_TIMED_OUT,
        Error::Misaligned { .. } => QNIC_E_MISALIGNED,
        Error::BadNotification { .. } => QNIC_E_BAD_NOTIFICATION,
        _ => QNIC_E_OTHER,
    }
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Keeps the detail for this thread; returns the code.
pub(crate) fn keep(failure: Failure) -> c_int {
    let code = failure.code();
    // At the end of a thread nothing asks for it any more.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(failure);
        }
    });
    code
}

/// Uses the last failure of this thread.
pub(crate) fn with_last<R>(work: impl FnOnce(Option<&Failure>) -> R) -> R {
    LAST.with_borrow(|last| work(last.as_ref()))
}
