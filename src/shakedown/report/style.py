"""How a report page looks: light, dark and on paper. Data only.

It never names a font, an image or an address outside the page.
"""

CSS = """
:root{color-scheme:light dark;
--bg:#fff;--fg:#1c2128;--muted:#57606a;--line:#d5dbe1;--soft:#f5f7f9;--link:#0a58b8;
--good:#17692f;--good-bg:#dff3e4;--bad:#a3210f;--bad-bg:#fde6e1;--warn:#8a3f00;--warn-bg:#fcebd6;
--odd:#7a2470;--odd-bg:#f7e3f4;--none:#4d565f;--none-bg:#e9edf1;
--prepare:#d3dae1;--ranks:#d9ccf5;--load:#bcd8f5;--build:#f4dc9c;--up:#b7e0c1;--hatch:#1c212859;--mark:#a3210f}
@media (prefers-color-scheme:dark){:root{
--bg:#0f1419;--fg:#e4e8ec;--muted:#a0aab4;--line:#2d353e;--soft:#181f27;--link:#7db7ff;
--good:#7fdb98;--good-bg:#12351e;--bad:#ff9d8c;--bad-bg:#431a14;--warn:#ffba75;--warn-bg:#40270d;
--odd:#f0a3e6;--odd-bg:#3b1637;--none:#b4bec8;--none-bg:#29313a;
--prepare:#3b4652;--ranks:#4b3a78;--load:#224d7b;--build:#654d12;--up:#1d5731;--hatch:#e4e8ec59;--mark:#ff9d8c}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);font:14px/1.5 system-ui,-apple-system,"Segoe UI",
"Liberation Sans",sans-serif}
main,header,footer{max-width:70rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:1.75rem}
footer{padding-top:1rem;padding-bottom:2rem;color:var(--muted);font-size:12px}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 .4rem;font-weight:650;letter-spacing:-.01em}
h2{font-size:1rem;margin:0 0 .6rem;font-weight:650}
h3{font-size:.93rem;margin:1rem 0 .35rem;font-weight:600}
section{border-top:1px solid var(--line);padding:1.1rem 0 1.2rem}
p{margin:.35rem 0}
a{color:var(--link);text-underline-offset:2px}
a:focus-visible,summary:focus-visible,pre:focus-visible{outline:2px solid var(--link);outline-offset:2px}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.9em}
code{unicode-bidi:isolate;overflow-wrap:anywhere}
:not(pre)>code{background:var(--soft);border-radius:3px;padding:.05em .3em}
pre{margin:.4rem 0;padding:.7rem .85rem;background:var(--soft);border:1px solid var(--line);border-radius:6px;
overflow-x:auto;line-height:1.45}
pre code{font-size:12.5px;white-space:pre;overflow-wrap:normal}
pre.copy{user-select:all;-webkit-user-select:all;cursor:copy}
pre.good{border-left:3px solid var(--good)}
pre.log code{font-size:11.5px;white-space:pre-wrap;overflow-wrap:anywhere}
.kicker,.note{color:var(--muted)}
.kicker{margin:0}
.lead{font-size:1.06rem;margin:.2rem 0 .8rem;max-width:62rem}
.badge{display:inline-block;border-radius:4px;padding:.02em .45em;font-weight:650;white-space:nowrap;
color:var(--none);background:var(--none-bg)}
.serves,.yes,.supported{color:var(--good);background:var(--good-bg)}
.crashed,.no,.refuted{color:var(--bad);background:var(--bad-bg)}
.hung,.slow{color:var(--warn);background:var(--warn-bg)}
.wrong{color:var(--odd);background:var(--odd-bg)}
.refuted{color:var(--none);background:var(--none-bg)}
.facts{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.22rem 1.1rem;margin:.3rem 0 1.1rem}
dt{color:var(--muted)}
dd{margin:0;min-width:0}
ul{margin:.3rem 0;padding-left:1.2rem}
ul.plain{list-style:none;padding:0}
ul.plain li{margin:.28rem 0}
ul.names li{display:inline-block;margin:0 .35rem .3rem 0}
ol.stack{margin:.3rem 0;padding-left:2rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
table.small{width:auto}
table.small td,table.small th{padding-right:2rem}
caption{text-align:left;color:var(--muted);padding-bottom:.3rem}
th{text-align:left;font-weight:600;color:var(--muted);font-size:12px;white-space:nowrap}
th,td{padding:.38rem .8rem .38rem 0;border-bottom:1px solid var(--line);vertical-align:top}
tbody tr:last-child td{border-bottom:0}
tr:target{background:var(--soft)}
td.num,th.num{text-align:right;white-space:nowrap}
td.tight{white-space:nowrap}
code.id{white-space:nowrap;overflow-wrap:normal;font-size:12px;background:none;padding:0}
.line>div{white-space:nowrap}
td .note{display:block;font-size:12px}
details{margin:.3rem 0}
details.launch>:not(summary){margin-left:1rem}
summary{cursor:pointer;padding:.15rem 0}
summary .note{margin-left:.35rem}
figure{margin:.2rem 0 .4rem}
figcaption{color:var(--muted);font-size:12px;margin-top:.4rem}
.line{display:grid;grid-template-columns:11rem minmax(0,1fr) 11.5rem;gap:0 .7rem;
align-items:center;min-height:26px}
.line.two{grid-template-columns:11rem minmax(0,1fr)}
.line>.name{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.line svg{display:block;width:100%;overflow:visible}
svg svg{overflow:hidden}
svg text{fill:var(--fg);font:11px system-ui,-apple-system,"Segoe UI","Liberation Sans",sans-serif}
svg .tick{stroke:var(--line)}
svg text.scale{fill:var(--muted)}
svg .mark{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:3 2}
svg rect[fill]{stroke:none}
svg .hatch{stroke:var(--hatch);stroke-width:1.2}
svg rect{stroke:var(--bg);stroke-width:1}
.prepare{fill:var(--prepare)}.ranks{fill:var(--ranks)}.load{fill:var(--load)}.build{fill:var(--build)}
.up{fill:var(--up)}
.dot{fill:var(--link)}.whisker{stroke:var(--link);stroke-width:2}
.curve{fill:none;stroke:var(--link);stroke-width:1.5}
.key{display:inline-block;margin-right:1rem;white-space:nowrap}
.key svg{width:14px;height:10px;vertical-align:-1px;margin-right:.3rem}
.hidden{position:absolute;width:0;height:0}
del,ins{text-decoration:none}
del code{color:var(--bad);background:var(--bad-bg)}
ins code{color:var(--good);background:var(--good-bg)}
@media (max-width:46rem){.line,.line.two{grid-template-columns:minmax(0,1fr)}
main,header,footer{padding-left:1rem;padding-right:1rem}}
@media print{:root{color-scheme:light}@page{margin:14mm}body{font-size:9pt}
.scroll,pre{overflow:visible}table{font-size:8pt}td code.id{font-size:7.5pt}td .note{font-size:7.5pt}
.line{grid-template-columns:7rem minmax(0,1fr) 9.5rem}.line.two{grid-template-columns:7rem minmax(0,1fr)}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
main,header,footer{max-width:none;padding-left:0;padding-right:0}
pre,pre code{white-space:pre-wrap;overflow-wrap:anywhere}
tr,figure,.line,pre.copy{break-inside:avoid}h2,h3{break-after:avoid}a{color:inherit;text-decoration:none}}
"""
