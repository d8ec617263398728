// Sentences of the embedded language pair (covnmt demo), from short to long.

export const EXAMPLES = [
  ["Short", "ze muye piro sire tuye"],
  ["Two lines", "fa zota nori re pela\nre vera ruva re zilo nuri ziyo sita yila"],
  ["Long",
    "ru pize feli nuri pize vo tuye yali mela fo ru le le le le tafa zose piro vulu " +
    "yome te tuye puva ye lone pe nuri nesa ro mifi le le ravo fayu"],
  ["80 words",
    "ze ka zari ro luvi ru tuye peso ru nuse ro valo tute pize fo ze ka zari ro luvi " +
    "ru tufu peso ru nuse ro valo tute pize lo tozo tamo seki ni tozo tamo seki fo " +
    "pize pesu re neko muva valo pize ta ye tuye ro puva re tu zilo zilo zumu lo muva " +
    "valo pize ta ye tuye ro puva re tu zilo zilo zumu ni muva valo pize ta ye tuye " +
    "ro puva re tu"],
];
