//! Methods that pass a call on to the driver core, unless a forked child makes it.

/// Makes such methods of an [`Own`](qnic_shared::region::Own) object of the driver core: for each its
/// documentation, name and argument.
macro_rules! pass_on {
    ($this:ident => $object:expr; $($(#[$doc:meta])* $name:ident($argument:ty);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`HostError::Call`](crate::HostError::Call), [`HostError::Forked`](crate::HostError::Forked)
        pub fn $name(&$this, call: &mut $argument) -> Result<(), crate::HostError> {
            Ok($object?.$name(call)?)
        }
    )*};
}

pub(crate) use pass_on;
