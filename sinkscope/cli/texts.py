"""What is measured on, as the command line names it: files, prompts, datasets, or tokens that are no text."""

from typing import Any


def documents(asked: Any) -> Any:
    """The texts of a Request; their beginnings are read here."""
    from sinkscope.text.documents import read_documents

    return read_documents(asked.texts, asked.prompts, asked.column, _rows(asked))


def windows(asked: Any, loaded: Any, texts: Any, plan: Any) -> Any:
    """The windows that a protocol asks for, of the texts or of synthetic tokens."""
    from sinkscope.hooks.forward import embedding
    from sinkscope.text import corpus
    from sinkscope.text.synthetic import synthetic

    how = {"seq_len": plan.seq_len, "count": plan.count, "bos": plan.bos}
    if asked.synthetic is not None:
        drawn = {"seed": asked.measuring["seed"], "embedded": len(embedding(loaded.model))}
        return synthetic(loaded.tokenizer, asked.synthetic, **how, **drawn)
    return corpus.windows(loaded.tokenizer, texts, **how, explicit=plan.explicit, chat=asked.given["chat"])


def _rows(asked: Any) -> list[Any]:
    # Only where there are any, since it takes torch to ask the Hub.
    if not asked.datasets:
        return []
    from sinkscope.text.hub_datasets import dataset_rows

    how = {"column": asked.column, "revision": asked.dataset_revision, "token": asked.loading["token"]}
    return [dataset_rows(given, **how) for given in asked.datasets]
