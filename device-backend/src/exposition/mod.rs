//! The metrics endpoint: all counters and gauges of the process, for Prometheus.
//!
//! ```text
//!   Prometheus, curl            this process
//!  ┌────────────────┐   HTTP   ┌──────────────────────────────────────────────┐
//!  │ GET /metrics   ├─────────►│ [http]: one thread, at most 16 clients       │
//!  │                │          │   │ asks, at most every 100 ms               │
//!  │ text 0.0.4     │◄─────────┤   ▼                                          │
//!  └────────────────┘          │ engine: one snapshot (Stats) ─► [render]     │
//!                              └──────────────────────────────────────────────┘
//! ```
//!
//! The endpoint listens on a Unix socket, on an address, or on both (`[metrics]` of the
//! configuration, [`qnic_config::MetricsSettings`]). The engine counts as it does without it; a
//! snapshot is the same that the metrics socket gives ([`crate::metrics`]). Many clients share
//! one snapshot, so they cost the engine no more than one client does.
//!
//! [`catalog`] lists the metrics; docs/metrics.md has the same list for people, and a test
//! compares the two. [`text`] knows the format, and nothing of NICs.

mod catalog;
mod http;
mod render;
mod text;

#[cfg(test)]
mod dashboard_tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use http::{serve, Bounds, Listener};

use crate::engine::Engines;
use crate::metrics;

/// How long one snapshot answers all requests.
const SNAPSHOT_AGE: Duration = Duration::from_millis(100);

/// Gives the text of a snapshot that is at most [`SNAPSHOT_AGE`] old.
#[derive(Debug)]
pub(crate) struct Source {
    engines: Engines,
    /// The name of this device process, if it has one.
    process: Option<String>,
    last: Option<(Instant, Arc<[u8]>)>,
}

impl Source {
    pub(crate) fn new(engines: Engines, process: Option<String>) -> Self {
        Source {
            engines,
            process,
            last: None,
        }
    }

    /// The text, or `None` once an engine has ended.
    pub(crate) fn text(&mut self) -> Option<Arc<[u8]>> {
        let now = Instant::now();
        if let Some((taken, text)) = &self.last {
            if now.duration_since(*taken) < SNAPSHOT_AGE {
                return Some(text.clone());
            }
        }
        let stats = metrics::collect(&self.engines).ok()?;
        let text: Arc<[u8]> = render::render(&stats, self.process.as_deref())
            .into_bytes()
            .into();
        self.last = Some((now, text.clone()));
        Some(text)
    }
}
