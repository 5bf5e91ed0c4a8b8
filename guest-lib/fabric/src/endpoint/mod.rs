//! `fid_ep`: an endpoint, from its bindings to its messages.
//!
//! ```text
//!   open ─► bind: Av, Cq for Sends, Cq for receives ─► enable ─► Running ─► messages ─► close
//! ```
//! An endpoint registers its process when it is enabled; its address is known from then on.

mod atomic;
mod collective;
mod messages;
mod remote;
mod rma;
mod tagged;
mod untagged;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use qnic::Port;

use crate::address::Address;
use crate::av::{self, Av};
use crate::base::Base;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::eq::Eq;
use crate::errno::{
    count, status, Errno, Result, BAD_FLAGS, BAD_STATE, BUSY, INVALID, NO_AV, NO_CQ, NO_OPTION,
    UNSUPPORTED,
};
use crate::fence::{Deferred, Fences};
use crate::info::exchange;
use crate::info::offer::MULTI_RECV_MIN;
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::progress::Helper;
use crate::service::Reached;
use crate::sys::{
    FidEp, Head, Info, Ops, OpsCm, OpsEp, ATOMIC, CLASS_AV, CLASS_CNTR, CLASS_CQ, CLASS_EP,
    CLASS_EQ, COLLECTIVE, CONTROL_ENABLE, DIRECTED_RECV, FENCE, FI_ETOOSMALL, OPT_ENDPOINT,
    OPT_MIN_MULTI_RECV, READ, RECV, REMOTE_READ, REMOTE_WRITE, RMA, SELECTIVE_COMPLETION, SEND,
    WRITE,
};
use crate::waiting;

pub(crate) use atomic::query as query_atomic;
pub(crate) use collective::query as query_collective;
use remote::{Counters, Remote};

/// What the provider keeps of an endpoint.
#[derive(Debug)]
pub(crate) struct Ep {
    base: Arc<Base>,
    _domain: Parent,
    /// The port that the program has asked for; 0: any.
    port: Port,
    /// Flags of Sends and receives that name none.
    tx_flags: u64,
    rx_flags: u64,
    /// Receives look at the address of their sender.
    directed: bool,
    /// Bytes that a receive of many messages keeps for each.
    least: AtomicUsize,
    /// It reaches the memory of peers, and they that of its domain.
    has_memory: bool,
    /// Its operations can wait for earlier ones.
    has_fences: bool,
    /// It joins groups.
    collects: bool,
    bound: Mutex<Bound>,
    running: OnceLock<Running>,
}

/// What stands behind an endpoint that is enabled.
#[derive(Debug)]
struct Running {
    // In front of the engine: while it leaves the service, no other endpoint has its port.
    remote: Option<Remote>,
    engine: Arc<Engine>,
    _helper: Helper,
    tx: Binding,
    rx: Binding,
}

#[derive(Debug, Default)]
struct Bound {
    av: Option<Arc<Av>>,
    tx: Binding,
    rx: Binding,
    counters: Counters,
    /// Where the ends of joins are told.
    events: Option<Arc<Eq>>,
}

#[derive(Debug, Clone, Default)]
struct Binding {
    queue: Option<Arc<Cq>>,
    counter: Option<Arc<Cntr>>,
    /// Operations are told of only if they ask for it.
    selective: bool,
}

crate::object::object_class!(
    Ep,
    FidEp,
    CLASS_EP,
    Ops {
        close,
        bind,
        control,
        ..Ops::STUBS
    }
);

static EP_OPS: OpsEp = OpsEp {
    cancel,
    getopt,
    setopt,
    ..OpsEp::STUBS
};
static CM_OPS: OpsCm = OpsCm {
    getname,
    join: collective::join,
    ..OpsCm::STUBS
};

/// Opens an endpoint.
///
/// # Errors
/// [`INVALID`]: an address of another provider; there is no place for it.
pub(crate) fn open(
    base: Arc<Base>,
    domain: Parent,
    info: In<Info>,
    opened: Out<Fid<FidEp>>,
    context: Context,
) -> Result<()> {
    let info = exchange::hints(info).ok_or(INVALID)?;
    let port = match info.source {
        None => Port(0),
        Some(bytes) => Address::wanted(&bytes).ok_or(INVALID)?.port,
    };
    let state = Ep {
        base,
        _domain: domain,
        port,
        tx_flags: info.tx.map_or(0, |tx| tx.op_flags),
        rx_flags: info.rx.map_or(0, |rx| rx.op_flags),
        directed: info.caps & DIRECTED_RECV != 0,
        least: AtomicUsize::new(MULTI_RECV_MIN),
        has_memory: info.caps & (RMA | ATOMIC) != 0,
        has_fences: info.caps & FENCE != 0,
        collects: info.caps & COLLECTIVE != 0,
        bound: Mutex::default(),
        running: OnceLock::new(),
    };
    let fid = FidEp {
        head: Head {
            class: CLASS_EP,
            context,
            ops: Ep::OPS,
        },
        ops: &EP_OPS,
        cm: &CM_OPS,
        msg: &untagged::OPS,
        rma: &rma::OPS,
        tagged: &tagged::OPS,
        atomic: &atomic::OPS,
        collective: &collective::OPS,
    };
    object::open_at(opened, fid, Arc::new(state))
}

impl Bound {
    /// What flags of a binding name.
    fn of(&mut self, flags: u64) -> impl Iterator<Item = &mut Binding> {
        let named = [(SEND, &mut self.tx), (RECV, &mut self.rx)];
        named
            .into_iter()
            .filter_map(move |(flag, binding)| (flags & flag != 0).then_some(binding))
    }
}

impl Bound {
    /// The counters of operations on memory that flags of a binding name.
    fn counters(&mut self, flags: u64) -> impl Iterator<Item = &mut Option<Arc<Cntr>>> {
        let counters = &mut self.counters;
        let named = [
            (READ, &mut counters.reads),
            (WRITE, &mut counters.writes),
            (REMOTE_READ, &mut counters.remote_reads),
            (REMOTE_WRITE, &mut counters.remote_writes),
        ];
        named
            .into_iter()
            .filter_map(move |(flag, counter)| (flags & flag != 0).then_some(counter))
    }

    fn is_any(&self) -> bool {
        let counts = self.counters.all().next().is_some();
        counts || self.tx.is_bound() || self.rx.is_bound()
    }
}

impl Binding {
    fn is_bound(&self) -> bool {
        self.queue.is_some() || self.counter.is_some()
    }

    /// No thread that looks at its queue and its counter uses an endpoint that was dropped when this returns.
    fn forget_dropped(&self) {
        if let Some(queue) = &self.queue {
            queue.waiting().forget_dropped();
        }
        if let Some(counter) = &self.counter {
            counter.waiting().forget_dropped();
        }
    }
}

impl Ep {
    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has since it was enabled.
    fn running(&self) -> Result<&Running> {
        self.running.get().ok_or(BAD_STATE)
    }

    /// What another thread has that looks at a queue of it just now.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> Arc<Engine> {
        self.running().unwrap().engine.clone()
    }

    /// How often the engine has looked at an operation.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.running().map_or(0, |running| running.engine.looks())
    }

    /// The service of its domain.
    #[cfg(test)]
    pub(crate) fn service(&self) -> Option<Arc<crate::service::Service>> {
        let remote = self.running.get()?.remote.as_ref()?;
        Some(remote.service.clone())
    }

    /// Begins an operation on a peer, or holds it behind a fence.
    ///
    /// # Errors
    /// [`BAD_FLAGS`]: the endpoint has no fences. Those of the operation.
    fn defer(
        &self,
        running: &Running,
        peer: u64,
        flags: u64,
        operation: impl Deferred + 'static,
    ) -> Result<()> {
        let is_fenced = flags & FENCE != 0;
        if !self.has_fences {
            return match is_fenced {
                true => Err(BAD_FLAGS),
                false => operation.begin(None),
            };
        }
        let (engine, peer) = (&running.engine, running.engine.address_of(peer)?);
        if engine
            .fences()
            .admit(peer, is_fenced, Arc::new(operation))?
        {
            engine.tend_fences();
        }
        Ok(())
    }

    fn enable(&self) -> Result<()> {
        let bound = self.bound();
        if self.running.get().is_some() {
            return Err(BAD_STATE);
        }
        let av = bound.av.clone().ok_or(NO_AV)?;
        if !bound.is_any() {
            return Err(NO_CQ);
        }
        let memory = match self.has_memory {
            true => self.base.with_service(|it| it.service.name())?,
            false => (Port(0), 0),
        };
        let engine = Arc::new(Engine::new(self.base.nic(), self.port, memory, av.clone())?);
        let source: Arc<dyn waiting::Engine> = engine.clone();
        for binding in [&bound.tx, &bound.rx] {
            if let Some(queue) = &binding.queue {
                queue.waiting().attach(&source)?;
            }
            if let Some(counter) = &binding.counter {
                counter.waiting().attach(&source)?;
            }
        }
        let _helper = Helper::start(engine.clone(), engine.helper())?;
        let address = engine.address();
        let remote = match self.has_memory {
            true => Some(self.join(&bound, address, av, engine.fences())?),
            false => None,
        };
        let (tx, rx) = (bound.tx.clone(), bound.rx.clone());
        self.running
            .set(Running {
                remote,
                engine,
                _helper,
                tx,
                rx,
            })
            .map_err(|_| BAD_STATE)
    }

    /// Lets peers reach the memory of the domain by this endpoint, and it theirs.
    fn join(
        &self,
        bound: &Bound,
        address: Address,
        av: Arc<Av>,
        fences: &Arc<Fences>,
    ) -> Result<Remote> {
        let counters = bound.counters.clone();
        let reached = Reached {
            incarnation: address.incarnation,
            av,
            queue: bound.rx.queue.clone(),
            reads: counters.remote_reads.clone(),
            writes: counters.remote_writes.clone(),
            fences: fences.clone(),
        };
        let join = |running: &_| Remote::new(running, address.port, reached, counters);
        let remote = self.base.with_service(join)?;
        let source: Arc<dyn waiting::Engine> = remote.service.clone();
        for queue in [&bound.tx.queue, &bound.rx.queue].into_iter().flatten() {
            queue.waiting().attach(&source)?;
        }
        for counter in bound.counters.all() {
            counter.waiting().attach(&source)?;
        }
        Ok(remote)
    }

    fn bind(&self, other: Fid<Head>, flags: u64) -> Result<()> {
        let mut bound = self.bound();
        if self.running.get().is_some() {
            return Err(BAD_STATE);
        }
        match object::class(other)? {
            CLASS_AV => bound.av = Some(object::state(other)?),
            CLASS_EQ => bound.events = Some(object::state(other)?),
            CLASS_CQ => {
                if flags & !(SEND | RECV | SELECTIVE_COMPLETION) != 0 || flags & (SEND | RECV) == 0
                {
                    return Err(BAD_FLAGS);
                }
                let queue: Arc<Cq> = object::state(other)?;
                for binding in bound.of(flags) {
                    binding.queue = Some(queue.clone());
                    binding.selective = flags & SELECTIVE_COMPLETION != 0;
                }
            }
            CLASS_CNTR => {
                let counter: Arc<Cntr> = object::state(other)?;
                for binding in bound.of(flags) {
                    binding.counter = Some(counter.clone());
                }
                for place in bound.counters(flags) {
                    *place = Some(counter.clone());
                }
            }
            _ => return Err(UNSUPPORTED),
        }
        Ok(())
    }
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    // Calls of other threads on it have ended: the program promises that. Those on its queues and counters go on.
    let mut bindings = None;
    let settle = |ep: &Arc<Ep>| {
        if let Ok(running) = ep.running() {
            if running.engine.has_open_groups() {
                return Err(BUSY);
            }
            running.engine.settle();
            running.engine.close();
            bindings = Some([running.tx.clone(), running.rx.clone()]);
        }
        Ok(())
    };
    let closed = object::close::<Ep>(fid, settle);
    bindings.iter().flatten().for_each(Binding::forget_dropped);
    status(closed)
}

extern "C" fn bind(fid: Fid<Head>, other: Fid<Head>, flags: u64) -> c_int {
    status(object::state::<Ep, _>(fid).and_then(|ep| ep.bind(other, flags)))
}

extern "C" fn control(fid: Fid<Head>, command: c_int, _argument: Out<c_void>) -> c_int {
    status(object::state::<Ep, _>(fid).and_then(|ep| match command {
        CONTROL_ENABLE => ep.enable(),
        _ => Err(UNSUPPORTED),
    }))
}

extern "C" fn cancel(fid: Fid<Head>, context: Context) -> isize {
    let cancel = || {
        let ep = object::state::<Ep, _>(fid)?;
        ep.running()?.engine.cancel(context)?;
        Ok(0)
    };
    count(cancel())
}

/// Bytes of the value of the one option.
const OPTION_BYTES: usize = size_of::<usize>();

fn check_option(level: c_int, name: c_int) -> Result<()> {
    match (level, name) {
        (OPT_ENDPOINT, OPT_MIN_MULTI_RECV) => Ok(()),
        _ => Err(NO_OPTION),
    }
}

extern "C" fn getopt(
    fid: Fid<Head>,
    level: c_int,
    name: c_int,
    room: Out<c_void>,
    length: Out<usize>,
) -> c_int {
    let get = || {
        let ep = object::state::<Ep, _>(fid)?;
        check_option(level, name)?;
        let given = length.get().ok_or(INVALID)?;
        length.set(OPTION_BYTES);
        if given < OPTION_BYTES {
            return Err(Errno(FI_ETOOSMALL));
        }
        // Relaxed: a number by itself, here and below.
        let least = ep.least.load(Ordering::Relaxed);
        match room.copy_in(0, &least.to_ne_bytes()) {
            true => Ok(()),
            false => Err(INVALID),
        }
    };
    status(get())
}

extern "C" fn setopt(
    fid: Fid<Head>,
    level: c_int,
    name: c_int,
    value: In<c_void>,
    length: usize,
) -> c_int {
    let set = || {
        let ep = object::state::<Ep, _>(fid)?;
        check_option(level, name)?;
        let bytes = value.bytes(length).ok_or(INVALID)?;
        let least = usize::from_ne_bytes(bytes.try_into().map_err(|_| INVALID)?);
        ep.least.store(least, Ordering::Relaxed);
        Ok(())
    };
    status(set())
}

extern "C" fn getname(fid: Fid<Head>, room: Out<c_void>, length: Out<usize>) -> c_int {
    let name = || {
        let ep = object::state::<Ep, _>(fid)?;
        let address = ep.running()?.engine.address();
        av::store(address, room, length)
    };
    status(name())
}
