"""From text to batches; a batch is a pure function of (seed, step).

==================  ==============================================================================
``text``            ``read_documents``, ``embedded_corpus``: files, and the interpreter's own prose
``split``           ``split_documents``: train and validation, by a hash of the text
``vocabulary``      ``train_wordpiece``, ``load_tokenizer``
``byte_tokenizer``  ``byte_tokenizer``: bytes as tokens
``packing``         ``tokenize_documents``, ``pack``, ``PackedRows``: documents into rows
``masking``         ``Masking``: BERT's 80/10/10 rule
``draws``           ``derive_seed``: random numbers by name
``batches``         ``TrainingBatches``, ``ValidationBatches``
``baseline``        ``unigram_loss``, ``bigram_loss`` and their counts: what a model has to beat
==================  ==============================================================================

Each is imported on its own, so that nobody pays for a part that is not used.
"""
