// Example sentences by the source language of a model. Those of the embedded pair are for models
// of `covnmt demo`; those in Japanese and Chinese are split into words as the open corpora are, and
// joined for models that take plain text; those in German are plain text, and split for other models.

const EMBEDDED = [
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

const BY_LANGUAGE = {
  ja: [
    ["Short",
      "この 寺 は 京都 市 の 北 に あ る 。"],
    ["A festival",
      "この 神社 の 祭 は 毎年 5 月 に 行 わ れ 、 多 く の 人々 が 神輿 を 担 い で 町 の 中 を 歩 く 。"],
    ["Two lines",
      "庭園 の 池 の 中 に は 大き な 島 と 小さ な 島 が あ る 。\n" +
      "本堂 は 火災 に よ っ て 焼失 し た が 、 三 年 後 に 再建 さ れ 、 現在 は " +
      "重要 文化 財 に 指定 さ れ て い る 。"],
    ["Long",
      "東 の 山 に は 大き な 寺 が あ り 、 西 の 山 に も 大き な 寺 が あ り 、 北 " +
      "の 山 に は 小さ な 神社 が あ る が 、 南 に は 山 も 寺 も 神社 も な い 。"],
    ["Longer",
      "室町 時代 の 終わり に 、 この 城 は 戦い で 焼 か れ 、 城主 と その 家族 は " +
      "殺 さ れ 、 城 の 石 は 別 の 城 を 築 く ため に 運 ば れ 、 今 で は 城 の " +
      "跡 に 小さ な 石碑 が 立 っ て い る だけ で あ る 。"],
  ],
  zh: [
    ["Short",
      "动物园 应 于 每年 六月 公布 动物 名册 。"],
    ["Two lines",
      "申请人 应 于 三十 日 内 补正 。\n" +
      "图书馆 应 保存 阅览 纪录 , 并 不 得 向 第三 人 提供 阅览 纪录 。"],
    ["Long",
      "学校 应 设 学生 宿舍 , 宿舍 应 设 管理 人员 , 管理 人员 应 每月 检查 宿舍 消防 " +
      "设备 , 并 将 检查 结果 报 学校 备查 。"],
    ["Longer",
      "博物馆 因 研究 、 展览 或 修复 需要 , 得 将 藏品 借 予 其他 博物馆 ; 借用 期间 " +
      "不 得 逾 一 年 , 期间 届满 前 , 借用 之 博物馆 得 申请 延长 , 但 延长 期间 " +
      "合计 不 得 逾 二 年 ; 藏品 毁损 或 遗失 时 , 借用 之 博物馆 应 负 赔偿 责任 。"],
  ],
};

const PLAIN = {
  de: [
    ["Short",
      "Wir brauchen sauberes Wasser, gesunde Wälder und fruchtbare Böden."],
    ["One omission",
      "Die Bauern, die im letzten Sommer wegen der Trockenheit einen großen Teil ihrer Ernte " +
      "verloren haben, warten noch immer auf die Hilfe des Rates."],
    ["A speech",
      "Frau Präsidentin, ich möchte kurz auf drei Punkte eingehen: die Sicherheit auf See, den " +
      "Schutz der Meere und die Rechte der Seeleute."],
    ["Two lines",
      "Die Kommission hat gestern einen Vorschlag vorgelegt, der den Schutz der Küsten " +
      "verbessern soll.\nIch bin gegen diesen Vorschlag, weil er teuer, ungerecht und überflüssig ist."],
    ["Long",
      "Wenn wir die Landwirte unterstützen wollen, müssen wir die Vorschriften vereinfachen, die " +
      "Beihilfen gerechter verteilen und die jungen Menschen auf dem Land ausbilden."],
    ["Longer",
      "Am Dienstag, dem 14. März, trafen sich die Minister für Verkehr, Umwelt, Fischerei und " +
      "Forschung in Kopenhagen, um über die Zukunft der Nordsee, die Preise für Heizöl und die " +
      "Ausbildung der Lotsen zu beraten."],
  ],
};

/** [title, text] pairs for a model; those of the embedded pair if its language is unknown. */
export function examplesFor({ source, plain_text }) {
  if (source === "source") return EMBEDDED;
  const plain = PLAIN[source];
  if (plain) return plain_text ? plain : plain.map(([title, text]) => [title, text.replace(/[.,:]/g, " $&")]);
  const list = BY_LANGUAGE[source] ?? [];
  return plain_text ? list.map(([title, text]) => [title, text.replaceAll(" ", "")]) : list;
}
