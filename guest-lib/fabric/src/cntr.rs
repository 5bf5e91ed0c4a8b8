//! `fid_cntr`: how many operations have ended, and how many of them have failed.
//!
//! It counts each end of the operations of the directions that it is bound for, also of those that a completion
//! queue does not tell.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use crate::eq::deadline;
use crate::errno::{status, Errno, Result, UNSUPPORTED};
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    CntrAttr, FidCntr, Head, Ops, OpsCntr, CLASS_CNTR, FI_EAVAIL, WAIT_NONE, WAIT_UNSPEC,
};
use crate::waiting::Waiting;

/// What the provider keeps of a counter.
#[derive(Debug)]
pub(crate) struct Cntr {
    ended: AtomicU64,
    failed: AtomicU64,
    waiting: Waiting,
    _domain: Parent,
}

crate::object::object_class!(
    Cntr,
    FidCntr,
    CLASS_CNTR,
    Ops {
        close,
        control,
        ..Ops::STUBS
    }
);

static CNTR_OPS: OpsCntr = OpsCntr {
    read,
    readerr,
    add,
    set,
    wait,
    adderr,
    seterr,
    ..OpsCntr::STUBS
};

/// Opens a counter.
///
/// # Errors
/// [`UNSUPPORTED`]: it counts something else, or has no such object to wait with. There is no place for it.
pub(crate) fn open(
    domain: Parent,
    attributes: In<CntrAttr>,
    opened: Out<Fid<FidCntr>>,
    context: Context,
) -> Result<()> {
    let (events, kind) = attributes
        .get()
        .map_or((0, WAIT_UNSPEC), |it| (it.events, it.wait_obj));
    if events != 0 {
        return Err(UNSUPPORTED);
    }
    // A wait needs something to sleep on in any case.
    let kind = if kind == WAIT_NONE { WAIT_UNSPEC } else { kind };
    let (ended, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let waiting = Waiting::new(kind)?;
    let head = Head {
        class: CLASS_CNTR,
        context,
        ops: Cntr::OPS,
    };
    let state = Arc::new(Cntr {
        ended,
        failed,
        waiting,
        _domain: domain,
    });
    object::open_at(
        opened,
        FidCntr {
            head,
            ops: &CNTR_OPS,
        },
        state,
    )
}

impl Cntr {
    /// The endpoints whose operations it counts.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Counts the end of an operation.
    pub(crate) fn count(&self, failed: bool) {
        // AcqRel: behind the bytes of the operation; partner is the load in `load`.
        match failed {
            true => self.failed.fetch_add(1, Ordering::AcqRel),
            false => self.ended.fetch_add(1, Ordering::AcqRel),
        };
        self.waiting.wake();
    }

    fn load(&self, which: &AtomicU64) -> u64 {
        let before = which.load(Ordering::Acquire);
        self.waiting.progress();
        let now = which.load(Ordering::Acquire);
        self.waiting.looked(now != before);
        now
    }

    fn change(&self, change: impl FnOnce(&Self)) {
        change(self);
        self.waiting.wake();
    }

    fn wait(&self, threshold: u64, timeout: c_int) -> Result<()> {
        let deadline = deadline(timeout);
        let failed = self.failed.load(Ordering::Acquire);
        let look = || {
            self.waiting.progress();
            if self.ended.load(Ordering::Acquire) >= threshold {
                return Some(Ok(()));
            }
            let more_failed = self.failed.load(Ordering::Acquire) != failed;
            more_failed.then_some(Err(Errno(FI_EAVAIL)))
        };
        loop {
            if let Some(end) = look() {
                return end;
            }
            let prepared = self.waiting.prepare();
            if let Some(end) = look() {
                // For another thread, whose event this one may have taken.
                self.waiting.wake();
                return end;
            }
            // Without a NIC, what is under way ends first.
            prepared?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            self.waiting.sleep(deadline)?;
        }
    }
}

fn of(counter: Fid<FidCntr>) -> Result<Arc<Cntr>> {
    object::state::<Cntr, _>(counter)
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Cntr>(fid, object::unused))
}

extern "C" fn control(fid: Fid<Head>, command: c_int, argument: Out<c_void>) -> c_int {
    let counter = object::state::<Cntr, _>(fid);
    status(counter.and_then(|counter| counter.waiting.tell(command, argument)))
}

extern "C" fn read(counter: Fid<FidCntr>) -> u64 {
    of(counter).map_or(0, |it| it.load(&it.ended))
}

extern "C" fn readerr(counter: Fid<FidCntr>) -> u64 {
    of(counter).map_or(0, |it| it.load(&it.failed))
}

fn changed(counter: Fid<FidCntr>, change: impl FnOnce(&Cntr)) -> c_int {
    status(of(counter).map(|it| it.change(change)))
}

extern "C" fn add(counter: Fid<FidCntr>, value: u64) -> c_int {
    changed(counter, |it| {
        it.ended.fetch_add(value, Ordering::AcqRel);
    })
}

extern "C" fn set(counter: Fid<FidCntr>, value: u64) -> c_int {
    changed(counter, |it| it.ended.store(value, Ordering::Release))
}

extern "C" fn adderr(counter: Fid<FidCntr>, value: u64) -> c_int {
    changed(counter, |it| {
        it.failed.fetch_add(value, Ordering::AcqRel);
    })
}

extern "C" fn seterr(counter: Fid<FidCntr>, value: u64) -> c_int {
    changed(counter, |it| it.failed.store(value, Ordering::Release))
}

extern "C" fn wait(counter: Fid<FidCntr>, threshold: u64, timeout: c_int) -> c_int {
    status(of(counter).and_then(|it| it.wait(threshold, timeout)))
}
