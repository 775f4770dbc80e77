//! The parameters of a module, by their names.
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use spectrain_models::weights::lift;

/// The elements of a tensor in a row.
pub(crate) fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let len = tensor.shape().num_elements();
    tensor.reshape([len])
}

/// Calls `each` with the name and the elements of every parameter that is trained; the elements are in no graph.
pub(crate) fn walk<M: Module>(module: &M, each: impl FnMut(String, Tensor<1>)) {
    module.visit(&mut Walk {
        path: Vec::new(),
        change: each,
    });
}

/// The module with what `change` makes of the elements of every parameter, given its name.
pub(crate) fn replaced<M: Module>(
    module: M,
    change: impl FnMut(&str, Tensor<1>) -> Tensor<1>,
) -> M {
    module.map(&mut Walk {
        path: Vec::new(),
        change,
    })
}

struct Walk<F> {
    path: Vec<String>,
    change: F,
}

/// The elements of a parameter, in no graph.
fn elements<const D: usize>(param: &Param<Tensor<D>>) -> Tensor<1> {
    flat(param.val().without_autodiff())
}

impl<F: FnMut(String, Tensor<1>)> ModuleVisitor for Walk<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            (self.change)(self.path.join("."), elements(param));
        }
    }
}

impl<F: FnMut(&str, Tensor<1>) -> Tensor<1>> ModuleMapper for Walk<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let changed = (self.change)(&self.path.join("."), elements(&param));
        let (id, before, mapper) = param.consume();
        let changed = changed.reshape(before.shape());
        let changed = match before.is_autodiff() {
            true => lift(changed, &before.device()).set_require_grad(before.is_require_grad()),
            false => changed,
        };
        Param::from_mapped_value(id, changed, mapper)
    }
}
