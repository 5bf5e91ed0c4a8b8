//! What every step works with.

use crate::cache::Cache;
use crate::prebuilt::Prebuilt;
use crate::progress::Progress;

/// The cache, what receives progress, and modules that need not be built.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) prebuilt: Option<&'a Prebuilt>,
}
