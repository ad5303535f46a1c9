// The texts of a page that have less contrast than 4.5, each kind once. What is disabled is left out, as WCAG does.
() => {
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const parse = (colour) => {
    const [red, green, blue, alpha = 1] = numbers(colour);
    return colour.startsWith("color(srgb") ? [red * 255, green * 255, blue * 255, alpha] : [red, green, blue, alpha];
  };
  const linear = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const over = (top, below) => [0, 1, 2].map((part) => top[part] * top[3] + below[part] * (1 - top[3])).concat(1);
  const parents = (element) => (element ? [element, ...parents(element.parentElement)] : []);
  const ground = (element) => parents(element).map((one) => parse(getComputedStyle(one).backgroundColor))
    .reduceRight((below, colour) => over(colour, below), [255, 255, 255, 1]);
  const found = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim();
    const element = texts.currentNode.parentElement;
    if (!text || element.closest(":disabled, .hidden, script, noscript, .stale") || element.getBoundingClientRect().width < 3) continue;
    const opacity = parents(element).reduce((product, one) => product * Number(getComputedStyle(one).opacity), 1);
    const below = ground(element);
    const [red, green, blue, alpha] = parse(getComputedStyle(element).color);
    const [one, other] = [light(over([red, green, blue, alpha * opacity], below)), light(below)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) found.set(`${element.tagName}.${element.className}`, `${contrast.toFixed(2)} ${text.slice(0, 40)}`);
  }
  return [...found];
}
