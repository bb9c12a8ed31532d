"""The works that the ledger and the docs speak of: who, when, what, where, and how well their text is known here.

`seen` says what was read: `text` (the work itself, or the part that a row cites), `abstract` (abstract or summary by
the authors), or `second-hand` (what others write about it). A row about a work known second-hand is never judged to
differ.
"""

from dataclasses import dataclass

SEEN = ("text", "abstract", "second-hand")


@dataclass(frozen=True)
class Work:
    """One source; `label` is how rows and pages name it, `unaddressed` says why a work has no address.

    Raises:
        ValueError: `seen` is none of `SEEN`.
    """

    label: str
    title: str
    address: str
    seen: str = "second-hand"
    unaddressed: str = ""

    def __post_init__(self) -> None:
        if self.seen not in SEEN:
            raise ValueError(f"`seen` must be one of {', '.join(SEEN)}, got {self.seen!r}")

    @property
    def second_hand(self) -> bool:
        """True where neither its text nor its abstract was read."""
        return self.seen == "second-hand"


def _arxiv(number: str) -> str:
    return f"https://arxiv.org/abs/{number}"


# In the order of the ledger's pages. A part of a work, which may be known otherwise than the whole, has the work's key,
# a hyphen and a word of its own.
WORKS = {
    # The works that this package answers to first. Notes by readers of other works come last.
    "dong2021": Work("Dong, Cordonnier & Loukas 2021",
        "Attention is not all you need: pure attention loses rank doubly exponentially with depth",
        _arxiv("2103.03404"), "abstract"),
    "dong2021-introduction": Work("Dong, Cordonnier & Loukas 2021, introduction",
        "Attention is not all you need: the introduction of the second version", _arxiv("2103.03404"), "text"),
    "dong2021-theorem": Work("Dong, Cordonnier & Loukas 2021, theorem 2.2",
        "Attention is not all you need: the theorem in its second version, as others restate it",
        _arxiv("2103.03404")),
    "dong2021-section4": Work("Dong, Cordonnier & Loukas 2021, section 4", "Experiments of the paper",
        _arxiv("2103.03404")),
    "dong2021-code": Work("code of Dong, Cordonnier & Loukas 2021", "The released code of the paper",
        "https://github.com/twistedcubic/attention-rank-collapse", "text"),
    "su2023concentrate": Work("Su Jianlin 2023b",
        "Zhùyìlì jīzhì zhēn de kěyǐ “jízhōng zhùyìlì” ma? (Can attention really concentrate?)",
        "https://kexue.fm/archives/9889", "text"),
    "su2023scale": Work("Su Jianlin 2023a",
        "Cóng tīdù zuìdàhuà kàn Attention de Scale cāozuò (The scale that maximises the gradient)",
        "https://kexue.fm/archives/9812", "text"),
    "su2023scale-comments": Work("comments under Su Jianlin 2023a", "Replies and readers' comments under the article",
        "https://kexue.fm/archives/9812", "text"),
    # Collapse.
    "wu2024": Work("Wu et al. 2024", "On the role of attention masks and LayerNorm in transformers",
        _arxiv("2405.18781"), "abstract"),
    "wu2024-figure": Work("Wu et al. 2024, figure 2",
        "On the role of attention masks and LayerNorm in transformers: the caption of figure 2, as a summary quotes it",
        _arxiv("2405.18781")),
    "wu2025position": Work("Wu et al. 2025", "On the emergence of position bias in transformers", _arxiv("2502.01951")),
    "noci2022": Work("Noci et al. 2022",
        "Signal propagation in transformers: theoretical perspectives and the role of rank collapse",
        _arxiv("2206.03126"), "abstract"),
    "noci2022-figure": Work("Noci et al. 2022, figure 1",
        "Signal propagation in transformers: the caption of figure 1", _arxiv("2206.03126"), "text"),
    "noci2022-theorem": Work("Noci et al. 2022, residual scaling",
        "Signal propagation in transformers: the theorem on residual scaling, as others restate it",
        _arxiv("2206.03126")),
    "naitsaada2025": Work("Nait Saada, Naderi & Tanner 2025",
        "Mind the gap: a spectral analysis of rank collapse and signal propagation in attention layers",
        _arxiv("2410.07799"), "abstract"),
    "naitsaada2025-formulas": Work("Nait Saada, Naderi & Tanner 2025, formulas",
        "Mind the gap: the limits of singular values and of the stable rank, as others restate them",
        _arxiv("2410.07799")),
    "naitsaada2025-code": Work("code of Nait Saada, Naderi & Tanner 2025", "The released code of the paper",
        "https://github.com/thizirinait/Mind-the-Gap-a-Spectral-Analysis-of-Rank-Collapse-and-Signal-Propagation-in-"
        "Attention-Layers", "text"),
    "giorlandino2025": Work("Giorlandino & Goldt 2025",
        "Two failure modes of deep transformers and how to avoid them: a unified theory of signal propagation at "
        "initialisation", _arxiv("2505.24333"), "abstract"),
    "giorlandino2025-code": Work("code of Giorlandino & Goldt 2025", "The released notebooks of the paper",
        "https://github.com/aGiorlandino/ICLR-Signal-Propagation-Transformers", "text"),
    "chen2026": Work("Chen, Lin, Polyanskiy & Rigollet 2026",
        "Critical attention scaling in long-context transformers", _arxiv("2510.05554"), "abstract"),
    "chen2026-theorem": Work("Chen, Lin, Polyanskiy & Rigollet 2026, theorem 2.1",
        "Critical attention scaling in long-context transformers: theorem 2.1, as a caption and summaries restate it",
        _arxiv("2510.05554")),
    "hayase2026": Work("Hayase & Karakida 2026",
        "A unified framework for critical scaling of inverse temperature in self-attention", _arxiv("2605.12697"),
        "abstract"),
    "zhai2023": Work("Zhai et al. 2023", "Stabilizing transformer training by preventing attention entropy collapse",
        _arxiv("2303.06296"), "abstract"),
    "daneshmand2020": Work("Daneshmand et al. 2020",
        "Batch normalization provably avoids rank collapse for randomly initialised deep networks",
        _arxiv("2003.01652"), "abstract"),
    "cohen2023": Work("Cohen & Fausti 2023", "Hyperbolic contractivity and the Hilbert metric on probability measures",
        _arxiv("2309.02413"), "abstract"),
    "birkhoff1957": Work("Birkhoff 1957", "Extensions of Jentzsch's theorem",
        "https://doi.org/10.1090/S0002-9947-1957-0087058-6"),
    "dobrushin1956": Work("Dobrushin 1956", "Central limit theorem for nonstationary Markov chains I",
        "https://doi.org/10.1137/1101006"),
    "viswanath1998": Work("Viswanath & Trefethen 1998", "Condition numbers of random triangular matrices",
        "https://doi.org/10.1137/S0895479896312869", "abstract"),
    "benaych2012": Work("Benaych-Georges & Nadakuditi 2012",
        "The singular values and vectors of low rank perturbations of large rectangular random matrices",
        _arxiv("1103.2221"), "abstract"),
    "li2022": Work("Li, Nica & Roy 2022",
        "The neural covariance SDE: shaped infinite depth-and-width networks at initialization", _arxiv("2206.02768"),
        "abstract"),
    "noci2023": Work("Noci et al. 2023",
        "The shaped transformer: attention models in the infinite depth-and-width limit", _arxiv("2306.17759"),
        "abstract"),
    "kedia2024": Work("Kedia et al. 2024",
        "Transformers get stable: an end-to-end signal propagation theory for language models", _arxiv("2403.09635"),
        "abstract"),
    "kedia2024-code": Work("code of Kedia et al. 2024", "The released code of the paper",
        "https://github.com/akhilkedia/TranformersGetStable", "text"),
    "sun2025depth": Work("Sun et al. 2025", "The curse of depth in large language models", _arxiv("2502.05795"),
        "text"),
    "alekseev2026": Work("Alekseev 2026",
        "Subcritical signal propagation at initialization in normalization-free transformers", _arxiv("2604.11890"),
        "abstract"),
    # Normalisers and switches of current models.
    "lapenna2026": Work("Lapenna, Fioresi & Gharesifard 2026",
        "Sinkhorn doubly stochastic attention rank decay analysis", _arxiv("2604.07925"), "abstract"),
    "sander2022": Work("Sander et al. 2022", "Sinkformers: transformers with doubly stochastic attention",
        _arxiv("2110.11773"), "abstract"),
    "ramapuram2024": Work("Ramapuram et al. 2024", "Theory, analysis, and best practices for sigmoid self-attention",
        _arxiv("2409.04431"), "abstract"),
    "ye2024": Work("Ye et al. 2024", "Differential transformer", _arxiv("2410.05258"), "abstract"),
    "qiu2025": Work("Qiu et al. 2025",
        "Gated attention for large language models: non-linearity, sparsity, and attention-sink-free",
        _arxiv("2505.06708"), "abstract"),
    # Sinks.
    "barbero2024": Work("Barbero et al. 2024, appendix B",
        "Transformers need glasses! Information over-squashing in language tasks: appendix B, as a transcript has it",
        _arxiv("2406.04267")),
    "barbero2025": Work("Barbero et al. 2025", "Why do LLMs attend to the first token?", _arxiv("2504.02732"),
        "abstract"),
    "barbero2025-figure": Work("Barbero et al. 2025, figure 1 and theorem 3.2",
        "Why do LLMs attend to the first token?: caption of figure 1 and theorem 3.2, as readers quote them",
        _arxiv("2504.02732")),
    "gu2025sinks": Work("Gu et al. 2025", "When attention sink emerges in language models: an empirical view",
        _arxiv("2410.10781"), "abstract"),
    "ranmilo2026": Work("Ran-Milo 2026",
        "Attention sinks are provably necessary in softmax transformers: evidence from trigger-conditional tasks",
        _arxiv("2603.11487"), "abstract"),
    "ranmilo2026-code": Work("code of Ran-Milo 2026", "The released code of the paper",
        "https://github.com/YuvMilo/sinks-are-provably-necessary", "text"),
    "fesser2026": Work("Fesser et al. 2026", "A unifying view of attention sinks: two algorithms, two solutions",
        _arxiv("2606.08105"), "abstract"),
    "sukenik2026": Work("Súkeník et al. 2026",
        "Sink vs. diagonal patterns as mechanisms for attention switch and oversmoothing prevention",
        _arxiv("2605.08453"), "abstract"),
    "nussbaum2003": Work("Nussbaum 2003", "Notes on the second eigenvalue of the Google matrix",
        _arxiv("math/0307056"), "abstract"),
    # Tokens as particles.
    "geshkovski2025": Work("Geshkovski, Letrouit, Polyanskiy & Rigollet 2025",
        "A mathematical perspective on transformers: the theorem on high dimension, as others restate it",
        _arxiv("2312.10794")),
    "geshkovski2025-code": Work("code of Geshkovski, Letrouit, Polyanskiy & Rigollet 2025",
        "The released code of the paper", "https://github.com/borjanG/2023-transformers-rotf", "text"),
    "bruno2025": Work("Bruno, Pasqualotto & Agazzi 2025",
        "Emergence of meta-stable clustering in mean-field transformer models", _arxiv("2410.23228"), "abstract"),
    "bruno2025-code": Work("code of Bruno, Pasqualotto & Agazzi 2025", "The released notebook of the paper",
        "https://github.com/gbruno16/transformers-metastability", "text"),
    "karagodin2025": Work("Karagodin, Ge, Polyanskiy & Rigollet 2025", "Normalization in attention dynamics",
        _arxiv("2510.22026"), "abstract"),
    "karagodin2025-speeds": Work("Karagodin, Ge, Polyanskiy & Rigollet 2025, speeds",
        "Normalization in attention dynamics: the speeds at first and in the end, as a summary restates them",
        _arxiv("2510.22026")),
    "geshkovski2024modes": Work("Geshkovski, Rigollet & Sun 2024",
        "On the number of modes of Gaussian kernel density estimators", _arxiv("2412.09080"), "abstract"),
    "rice1945": Work("Rice 1945", "Mathematical analysis of random noise",
        "https://doi.org/10.1002/j.1538-7305.1945.tb00453.x"),
    # Scale.
    "su2021entropy": Work("Su Jianlin 2021",
        "Cóng shāng bùbiànxìng kàn Attention de Scale cāozuò (The scale and the invariance of entropy)",
        "https://kexue.fm/archives/8823", "text"),
    "su2023decoder": Work("Su Jianlin 2023c",
        "Wèi shénme xiànzài de LLM dōu shì Decoder-only de jiàgòu? (Why are today's models decoders only?)",
        "https://kexue.fm/archives/9529"),
    "vaswani2017": Work("Vaswani et al. 2017", "Attention is all you need", _arxiv("1706.03762"), "text"),
    "britz2017": Work("Britz et al. 2017", "Massive exploration of neural machine translation architectures",
        _arxiv("1703.03906")),
    "bahdanau2014": Work("Bahdanau, Cho & Bengio 2014",
        "Neural machine translation by jointly learning to align and translate", _arxiv("1409.0473"), "text"),
    "derrida1981": Work("Derrida 1981", "Random-energy model: an exactly solvable model of disordered systems",
        "https://doi.org/10.1103/PhysRevB.24.2613"),
    "derrida2015": Work("Derrida & Mottishaw 2015",
        "Finite size corrections in the random energy model and the replica approach", _arxiv("1410.1432"), "abstract"),
    "bovier2002": Work("Bovier, Kurkova & Löwe 2002",
        "Fluctuations of the free energy in the REM and the p-spin SK models",
        "https://doi.org/10.1214/aop/1023481004"),
    "lucibello2024": Work("Lucibello & Mézard 2024", "Exponential capacity of dense associative memories",
        _arxiv("2304.14964")),
    "granger1980": Work("Granger 1980", "Long memory relationships and the aggregation of dynamic models",
        "https://doi.org/10.1016/0304-4076(80)90092-5"),
    "david2003": Work("David & Nagaraja 2003", "Order statistics", "https://doi.org/10.1002/0471722162"),
    "scaling-limits2026": Work("Bruno et al. 2026", "Scaling limits of long-context transformers", _arxiv("2605.08505"),
        "abstract"),
    "dehghani2023": Work("Dehghani et al. 2023", "Scaling vision transformers to 22 billion parameters",
        _arxiv("2302.05442")),
    "loshchilov2024": Work("Loshchilov et al. 2024",
        "nGPT: normalized transformer with representation learning on the hypersphere", _arxiv("2410.01131")),
    "liu2022": Work("Liu et al. 2022", "Swin transformer V2: scaling up capacity and resolution", _arxiv("2111.09883")),
    "henry2020": Work("Henry et al. 2020", "Query-key normalization for transformers", _arxiv("2010.04245")),
    "nakanishi2025": Work("Nakanishi 2025", "Scalable-softmax is superior for attention", _arxiv("2501.19399"), "text"),
    "peng2023": Work("Peng et al. 2023", "YaRN: efficient context window extension of large language models",
        _arxiv("2309.00071")),
    "wang2018": Work("Wang et al. 2018", "Additive margin softmax for face verification", _arxiv("1801.05599")),
    "gao2021": Work("Gao, Yao & Chen 2021", "SimCSE: simple contrastive learning of sentence embeddings",
        _arxiv("2104.08821")),
    "radford2021": Work("Radford et al. 2021", "Learning transferable visual models from natural language supervision",
        _arxiv("2103.00020")),
    "deng2019": Work("Deng et al. 2019", "ArcFace: additive angular margin loss for deep face recognition",
        _arxiv("1801.07698")),
    # Sparsity.
    "hurley2009": Work("Hurley & Rickard 2009", "Comparing measures of sparsity", _arxiv("0811.4706"), "abstract"),
    "dalton1920": Work("Dalton 1920", "The measurement of the inequality of incomes",
        "https://doi.org/10.2307/2223525"),
    "foster1985": Work("Foster 1985",
        "Inequality measurement (in: Fair allocation, Proceedings of Symposia in Applied Mathematics)",
        "https://doi.org/10.1090/psapm/033"),
    "katharopoulos2020": Work("Katharopoulos et al. 2020",
        "Transformers are RNNs: fast autoregressive transformers with linear attention", _arxiv("2006.16236"),
        "abstract"),
    "katharopoulos2020-memory": Work("Katharopoulos et al. 2020, section 3.2",
        "Transformers are RNNs: the memory of attention and of sums, as others restate it", _arxiv("2006.16236")),
    "choromanski2021": Work("Choromanski et al. 2021", "Rethinking attention with performers", _arxiv("2009.14794"),
        "abstract"),
    "alman2023": Work("Alman & Song 2023", "Fast attention requires bounded entries", _arxiv("2302.13214"),
        "abstract"),
    "alman2025": Work("Alman & Song 2025",
        "Only large weights (and not skip connections) can prevent the perils of rank collapse", _arxiv("2505.16284"),
        "abstract"),
    "castin2024": Work("Castin, Ablin & Peyré 2024", "How smooth is attention?", _arxiv("2312.14820"), "abstract"),
    "abella2024": Work("Rodríguez Abella, Silvestre & Tabuada 2024",
        "The asymptotic behavior of attention in transformers", _arxiv("2412.02682"), "abstract"),
    "mudarisov2025": Work("Mudarisov et al. 2025", "Limitations of normalization in attention mechanism",
        _arxiv("2508.17821"), "abstract"),
    # Anatomy.
    "men2024": Work("Men et al. 2024", "Base of RoPE bounds context length", _arxiv("2405.14591"), "abstract"),
    "su2021roformer": Work("Su et al. 2021", "RoFormer: enhanced transformer with rotary position embedding",
        _arxiv("2104.09864"), "text"),
    "cordonnier2020": Work("Cordonnier, Loukas & Jaggi 2020",
        "On the relationship between self-attention and convolutional layers", _arxiv("1911.03584"), "abstract"),
    "kipf2017": Work("Kipf & Welling 2017", "Semi-supervised classification with graph convolutional networks",
        _arxiv("1609.02907"), "text"),
    "saponati2025": Work("Saponati et al. 2025",
        "The underlying structures of self-attention: symmetry, directionality, and emergent dynamics in transformer "
        "training", _arxiv("2502.10927"), "abstract"),
    "goodfellow2016": Work("Goodfellow, Bengio & Courville 2016", "Deep learning", "https://www.deeplearningbook.org",
        "text"),
    "roy2007": Work("Roy & Vetterli 2007", "The effective rank: a measure of effective dimensionality", "",
        unaddressed="European Signal Processing Conference 2007, pages 606 to 610"),
    "bartlett1933": Work("Bartlett 1933", "On the theory of statistical regression",
        "https://doi.org/10.1017/S0370164600015637"),
    "hopf1963": Work("Hopf 1963", "An inequality for positive linear integral operators", "",
        unaddressed="Journal of Mathematics and Mechanics 12, pages 683 to 692"),
    # Kinds of weights.
    "lv2024": Work("Lv et al. 2024", "More expressive attention with negative weights", _arxiv("2411.07176")),
    "hua2022": Work("Hua et al. 2022", "Transformer quality in linear time", _arxiv("2202.10447")),
    "su2022": Work("Su Jianlin 2022", "archives 8934, the form of squared ReLU without a sum, in Chinese",
        "https://kexue.fm/archives/8934"),
    "sun2023": Work("Sun et al. 2023", "Retentive network: a successor to transformer for large language models",
        _arxiv("2307.08621")),
    "lin2025": Work("Lin et al. 2025", "Forgetting transformer: softmax attention with a forget gate",
        _arxiv("2503.02130")),
    "yang2023": Work("Yang et al. 2023", "Gated linear attention transformers with hardware-efficient training",
        _arxiv("2312.06635")),
    "brody2022": Work("Brody, Alon & Yahav 2022", "How attentive are graph attention networks?", _arxiv("2105.14491")),
    "miller2023": Work("Miller 2023", "Attention is off by one",
        "https://www.evanmiller.org/attention-is-off-by-one.html"),
    # Later works.
    "fedorov2026": Work("Fedorov et al. 2026", "Clustering in deep stochastic transformers", _arxiv("2601.21942"),
        "abstract"),
    "rigollet2025": Work("Rigollet 2025", "The mean-field dynamics of transformers", _arxiv("2512.01868"), "abstract"),
    "rigollet2025-rates": Work("Rigollet 2025, equiangular model",
        "The mean-field dynamics of transformers: rates of the equiangular model, as others restate them",
        _arxiv("2512.01868")),
    "herasimchyk2026": Work("Herasimchyk et al. 2026", "A structural theory of position bias in transformers",
        _arxiv("2602.16837"), "abstract"),
    "chen2026sinks": Work("Chen & Yao 2026",
        "Attention sinks induce gradient sinks: massive activations as gradient regulators in transformers",
        _arxiv("2603.17771"), "abstract"),
    "cirrincione2026": Work("Cirrincione 2026",
        "Rank, head-channel non-identifiability, and symmetry breaking: a precise analysis of representational "
        "collapse in transformers", _arxiv("2604.23681"), "abstract"),
    "velickovic2025": Work("Veličković et al. 2025", "Softmax is not enough (for sharp size generalisation)",
        _arxiv("2410.01104"), "abstract"),
    "velickovic2025-lemma": Work("Veličković et al. 2025, lemma 2.1",
        "Softmax is not enough (for sharp size generalisation): lemma 2.1, as summaries restate it",
        _arxiv("2410.01104")),
    "su2025clip": Work("Su Jianlin 2025",
        "QK-Clip: ràng Muon zài Scaleup zhī lù shàng gèng jìn yī bù (QK-Clip, in an English translation)",
        "https://kexue.fm/archives/11126", "text"),
    "queipo2025": Work("Queipo-de-Llano et al. 2025",
        "Attention sinks and compression valleys in LLMs are two sides of the same coin", _arxiv("2510.06477"),
        "abstract"),
    "boursier2025": Work("Boursier & Boyer 2025",
        "Softmax as linear attention in the large-prompt regime: a measure-based perspective",
        _arxiv("2512.11784"), "abstract"),
    "li2025variance": Work("Li, Boduljak & Zhou 2025", "On vanishing variance in transformer length generalization",
        _arxiv("2504.02827"), "abstract"),
    "invariants2026": Work("On the invariants of softmax attention 2026", "On the invariants of softmax attention",
        _arxiv("2605.02907"), "abstract"),
    "balasubramanian2026": Work("Balasubramanian 2026", "All routes lead to collapse", _arxiv("2606.22325"),
        "abstract"),
    "zhang2026laplacian": Work("Zhang & Papyan 2026",
        "Laplacian heads improve transformers by smoothing token representations", _arxiv("2602.09297"), "abstract"),
    # Notes by readers of other works.
    "collapse-summary": Work("vortezwohl and Wu 2025", "A summary of Dong et al. 2021, in Chinese", "", "text",
        "a readers' blog post, read as a text without its address"),
    "proof-notes": Work("notes on the collapse proof 2024",
        "Yī gè attention jiàng zhì lǐlùn de zhèngmíng (notes on a proof by Dong et al.)", "",
        "text", "a reader's blog post of 2024-11-09, read as a text without its address"),
    "study-notes": Work("study notes on attention",
        "Zhùyìlì jīzhì (study notes on attention, in Chinese)", "", "text",
        "a student's web page, read as a text without author, date or address"),
}  # fmt: skip


def work(source: str) -> str:
    """The key of the work that a source is a part of, or its own key.

    Example:
        >>> work("dong2021-theorem"), work("proof-notes")
        ('dong2021', 'proof-notes')
    """
    whole = source.rpartition("-")[0]
    return whole if whole in WORKS else source
