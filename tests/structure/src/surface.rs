//! What a type offers: its public methods.

use syn::{ImplItem, Item, Type, Visibility};

use crate::sources::Source;

/// Most public methods of `qnic::Endpoint`: one for each kind of operation. What can be said of an
/// operation beside that is said by methods of what these return.
pub const MAX_METHODS: usize = 30;

/// Public methods of the type of this name, of all of its inherent impls at the top of these files:
/// `file: name`.
///
/// # Errors
/// Returns an error if a file is not Rust.
pub fn public_methods(sources: &[Source], name: &str) -> syn::Result<Vec<String>> {
    let mut methods = Vec::new();
    for source in sources {
        for item in syn::parse_file(&source.text)?.items {
            let Item::Impl(block) = item else {
                continue;
            };
            let is_named = match &*block.self_ty {
                Type::Path(path) => ends_with(&path.path, name),
                _ => false,
            };
            if block.trait_.is_some() || !is_named {
                continue;
            }
            for item in block.items {
                if let ImplItem::Fn(method) = item {
                    if matches!(method.vis, Visibility::Public(_)) {
                        methods.push(format!("{}: {}", source.path, method.sig.ident));
                    }
                }
            }
        }
    }
    Ok(methods)
}

fn ends_with(path: &syn::Path, name: &str) -> bool {
    let last = path.segments.last();
    last.is_some_and(|segment| segment.ident == name)
}
