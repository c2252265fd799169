"""The filters, one file each; `engine.core.registry.FILTERS` names them."""
