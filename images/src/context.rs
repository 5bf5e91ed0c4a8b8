//! What every step works with.

use crate::cache::Cache;
use crate::progress::Progress;

/// The cache, and what receives progress.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) progress: &'a dyn Progress,
}
