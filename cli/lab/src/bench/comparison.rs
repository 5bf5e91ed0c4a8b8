//! Two runs compared, as data: a verdict for each figure, and the rows as text.

pub(super) mod text;
pub(super) mod verdict;
