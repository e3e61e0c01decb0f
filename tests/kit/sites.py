"""Five sites in a row with a branch, and the links between them."""

from tests.kit.nodes import FIVE_SITES

CHICAGO, NEW_YORK, LONDON, DUBLIN, ATLANTA, NEW_YORK_2 = FIVE_SITES
LINKS = [(("chicago", "new-york"), 10), (("atlanta", "new-york"), 10), (("new-york", "london"), 50), (("london", "dublin"), 10)]
NEIGHBOURS = {
    CHICAGO: [NEW_YORK, NEW_YORK_2],
    NEW_YORK: [CHICAGO, ATLANTA, LONDON],
    NEW_YORK_2: [CHICAGO, ATLANTA, LONDON],
    LONDON: [NEW_YORK, NEW_YORK_2, DUBLIN],
    DUBLIN: [LONDON],
    ATLANTA: [NEW_YORK, NEW_YORK_2],
}
